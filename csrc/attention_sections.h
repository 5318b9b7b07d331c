// What queries have seen of their sections, added up in the order of positions; and results, which are made of it.
//
// Under a common base, the larger of two, nothing but the addition rounds. Whether a query sees a section is up to positions alone: one
// that sees a single section has its sums as they are.
#pragma once

#include "attention_queries.h"

namespace quire::QUIRE_ISA {

// Those of which a query that sees keys up to this position sees some.
inline Sections sections_seen(const AttentionCall& call, int64_t position) {
    int64_t oldest = call.window ? largest(int64_t{0}, position - call.window + 1) : 0;
    return {oldest / SECTION, position / SECTION + 1};
}

// Of one query: those of a section in Queries, or kept elsewhere.
struct Sums {
    float *output, *total, *base;
};

inline Sums sums_of(Queries& queries, int n) { return {queries.output + n * queries.width, queries.total + n * LANES, queries.base + n}; }

// In floats_of_sums(head_dim) floats.
inline Sums kept_at(float* memory, int width) { return {memory, memory + width, memory + width + LANES}; }

inline void copy(const Sums& from, const Sums& to, int width) {
    for (int d = 0; d < width; d += LANES) store(to.output + d, load(from.output + d));
    store(to.total, load(from.total));
    *to.base = *from.base;
}

// The later section is added to those before it.
inline void add(const Sums& later, const Sums& sums, int width) {
    auto put = [&](const Sums& larger, const Sums& smaller) {
        float kept = whole_power_of_two(*smaller.base - *larger.base);
        for (int d = 0; d < width; d += LANES) store(sums.output + d, multiply_add(load(smaller.output + d), fill(kept), load(larger.output + d)));
        store(sums.total, multiply_add(load(smaller.total), fill(kept), load(larger.total)));
        *sums.base = *larger.base;
    };
    if (*later.base > *sums.base) put(later, sums);
    else put(sums, later);
}

// Sums of the queries' sections so far, [queries, floats_of_sums].
class Kept {
public:
    Kept(float* memory, int64_t stride) : memory_(memory), stride_(stride) {}

    // After a section that is not the last one of all queries.
    void keep(const AttentionCall& call, Queries& queries, int64_t section) const {
        for (int n = 0; n < queries.count; ++n)
            if (keep(call, n, queries.position[n], sums_of(queries, n), queries.width, section)) forget(queries, n);
    }

    // One query's sums; false where it has seen its last section, whose sums stay where they are.
    bool keep(const AttentionCall& call, int n, int64_t position, const Sums& sums, int width, int64_t section) const {
        Sections seen = sections_seen(call, position);
        if (section + 1 >= seen.last) return false;
        if (section == seen.first) copy(sums, of(n, width), width);
        else if (section > seen.first) add(sums, of(n, width), width);
        return true;
    }

    // Whether a section is the first one of queries [begin, begin + count), and not the last one: where their sums belong there is nothing yet.
    bool all_begin(const AttentionCall& call, const Queries& queries, int begin, int count, int64_t section) const {
        Sections first = sections_seen(call, queries.position[begin]), last = sections_seen(call, queries.position[begin + count - 1]);
        return first.first == section && last.first == section && first.last > section + 1;
    }
    Sums of(int n, int width) const { return kept_at(memory_ + n * stride_, width); }
    int64_t stride() const { return stride_; }

    // After a query's last one.
    Sums all(const AttentionCall& call, Queries& queries, int n) const {
        Sums last = sums_of(queries, n), sums = of(n, queries.width);
        Sections seen = sections_seen(call, queries.position[n]);
        if (seen.last - seen.first == 1) return last;
        add(last, sums, queries.width);
        return sums;
    }

private:
    float* memory_;
    int64_t stride_;
};

// Results of a part's queries, from their `sums(n, token)`; returns how many.
template <typename Type, typename SumsOf>
int write_output(const AttentionCall& call, const Part& part, Heads kv_heads, int width, SumsOf&& sums) {
    int of_kv_head = call.num_heads / call.layout.num_kv_heads, head_dim = call.layout.head_dim;
    auto* output = static_cast<typename Type::Value*>(call.output) + kv_heads.first * of_kv_head * head_dim;
    int n = 0;
    for_queries(part, kv_heads, of_kv_head, [&](int64_t token, int head) {
        auto* to = output + (token * call.num_heads + head) * head_dim;
        const Sums of_query = sums(n++, token);
        float share = 1.0f / sum_of(load(of_query.total));
        // Zeros are positive: what of keys that a query does not see is added to a sum that was flushed to a negative one depends on the other queries.
        auto result = [&](int d) {
            Floats product = load(of_query.output + d) * share;
            return product + Floats{};  // apart, for Clang would fuse them
        };
        int d = 0;
        for (; d + 2 * LANES <= head_dim; d += 2 * LANES) store(to + d, result(d), result(d + LANES));
        for (; d < width; d += LANES) store_part(to + d, result(d), head_dim - d);
    });
    return n;
}

// A split item's sums in scratch: [sections, queries, floats_of_sums].
class SplitSums {
public:
    SplitSums(const AttentionCall& call, const Split& split, int width)
        : call_(call), split_(split), width_(width), stride_(floats_of_sums(call.layout.head_dim)) {}

    void put(Queries& queries, int64_t section) const {
        for (int n = 0; n < queries.count; ++n) copy(sums_of(queries, n), at(section, n), width_);
    }

    template <typename Type>
    void write_outputs() const {
        const Item& item = *split_.item;
        int begin = 0;
        for (const Part* part = item.parts; part < item.parts + item.num_parts; ++part) {
            auto sums = [&](int n, int64_t token) { return all(begin + n, position_of(call_, *part, token)); };
            begin += write_output<Type>(call_, *part, item.kv_heads, width_, sums);
        }
    }

private:
    Sums at(int64_t section, int n) const {
        int64_t place = split_.first_sums + (section - split_.sections.first) * split_.item->num_queries + n;
        return kept_at(call_.scratch + place * stride_, width_);
    }
    Sums all(int n, int64_t position) const {
        Sections seen = sections_seen(call_, position);
        Sums sums = at(seen.first, n);
        for (int64_t section = seen.first + 1; section < seen.last; ++section) add(at(section, n), sums, width_);
        return sums;
    }

    const AttentionCall& call_;
    const Split& split_;
    int width_;
    int64_t stride_;
};

}  // namespace quire::QUIRE_ISA
