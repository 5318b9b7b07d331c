// Sampling without a sort of the vocabulary. The largest logit of each block of tokens bounds the `top_k`th from below, so that little
// more than `top_k` tokens are looked at; and tokens so light that all V of them together would not hold 1 - `top_p` are outside.
// What is left is halved until its border is found. A row is one member's, and nothing is added up in an order that others have a part in.
#include "sampling.h"

#include <algorithm>

#include "functions.h"
#include "kernels.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr float LEAST = -__builtin_inff();
constexpr int BLOCK = 128;   // tokens
constexpr int BUCKETS = 256;
constexpr float LEAST_RANGE = 1e-30f;  // of logits that are told apart by buckets: all in one, they are divided all the same
constexpr double LIGHTEST = 1e-38;  // of weights, but for 0
constexpr float LIKELY = -4;    // the exponent of tokens that are first looked at
constexpr float SLACK = 1e-3f;  // of a logit's distance to a border: what is within is weighed

// Types of this instruction set's own: see Line (vectors.h).
struct OfBlock {
    float largest;
    double weight;
};

struct Candidate {
    float logit, weight;
    int32_t token_id;

    bool operator<(const Candidate& other) const { return logit > other.logit || (logit == other.logit && token_id < other.token_id); }
};

using Candidates = std::vector<Candidate>;
using Place = Candidates::iterator;

double weight_of(Place first, Place last) {
    double sum = 0;
    for (; first != last; ++first) sum += first->weight;
    return sum;
}

// After all others in the order.
constexpr Candidate NO_TOKEN{LEAST, 0, INT32_MAX};

// The end of the fewest first ones that weigh so much; they come to lie in front, the last of them at their end.
Place fewest_that_weigh(Place first, Place last, double wanted) {
    while (last - first > 1) {
        Place middle = first + (last - first) / 2;
        std::nth_element(first, middle, last);
        double half = weight_of(first, middle);
        if (half >= wanted) last = middle;
        else wanted -= half, first = middle;
    }
    return last;
}

void sort_first(Candidates& candidates, int64_t count) {
    Place last = candidates.end();
    if (count < static_cast<int64_t>(candidates.size())) {
        last = candidates.begin() + count;
        std::nth_element(candidates.begin(), last - 1, candidates.end());
    }
    std::sort(candidates.begin(), last);
}

// The logits of one row: a member's memory is used for all of its rows.
class Row {
public:
    explicit Row(int64_t vocab_size) : vocab_size_(vocab_size), blocks_((vocab_size + BLOCK - 1) / BLOCK) {}

    int64_t draw(const DrawnRow& row) {
        begin(row.logits, row.temperature);
        int64_t top_k = row.top_k < vocab_size_ ? row.top_k : 0;
        bool truncated = top_k > 0 || row.min_p > 0 || row.top_p < 1;
        return truncated ? draw_of_likely(row, top_k) : draw_of_all(row.uniform);
    }

    // The logprobs of tokens, and where `token_id` is among all of them.
    int64_t rank(const LogprobsRow& row, int64_t* token_ids, float* logprobs) {
        begin(row.logits, 1.0);
        float log_sum = static_cast<float>(__builtin_log(weigh_all()));
        auto put = [&](int64_t i, int64_t token_id) {
            token_ids[i] = token_id;
            logprobs[i] = (row.logits[token_id] - largest_) - log_sum;
        };
        put(0, row.token_id);
        if (row.num_top > 0) {
            collect({bound_of_first(row.num_top), LEAST, 0});
            sort_first(likely_, row.num_top);
            int64_t found = static_cast<int64_t>(likely_.size());  // all but those that are not numbers
            for (int64_t i = 0; i < row.num_top; ++i) put(1 + i, i < found ? likely_[i].token_id : row.token_id);
        }
        return place_of(row.token_id);
    }

private:
    // What a candidate reaches: in its logit, in its exponent (logit - largest) / temperature, and in its weight.
    struct Bounds {
        float logit, exponent;
        double weight;
    };

    void begin(const float* logits, double temperature) {
        logits_ = logits;
        inverse_ = temperature > 1e-38 ? static_cast<float>(1 / temperature) : 1e38f;
        largest_ = LEAST;
        for_blocks([&](OfBlock& block, int64_t first, int64_t last) {
            Floats most = fill(LEAST);
            for (int64_t i = first; i < last; i += LANES) most = max(read(i), most);
            block.largest = max_of(most);
            largest_ = largest(largest_, block.largest);
        });
    }

    template <typename Function>
    void for_blocks(Function&& function) {
        for (std::size_t b = 0; b < blocks_.size(); ++b) {
            int64_t first = static_cast<int64_t>(b) * BLOCK;
            function(blocks_[b], first, end_of_block(first));
        }
    }

    int64_t end_of_block(int64_t first) const { return vocab_size_ - first < BLOCK ? vocab_size_ : first + BLOCK; }

    // Behind the last token there is none.
    Floats read(int64_t first) const {
        if (first + LANES <= vocab_size_) return load(logits_ + first);
        float padded[LANES];
        for (int lane = 0; lane < LANES; ++lane) padded[lane] = first + lane < vocab_size_ ? logits_[first + lane] : LEAST;
        return load(padded);
    }
    Floats exponents(Floats logits) const { return (logits - largest_) * inverse_; }

    double weigh_all() {
        double total = 0;
        for_blocks([&](OfBlock& block, int64_t first, int64_t last) {
            Floats sum = {};
            for (int64_t i = first; i < last; i += LANES) sum += exp_of_negative(exponents(read(i)));
            block.weight = sum_of(sum);
            total += block.weight;
        });
        return total;
    }

    // A uniform number is at most 1 - 2^-53, so that its product with a total is less than that: some block is found.
    int64_t draw_of_all(double uniform) {
        double left = uniform * weigh_all(), before = 0;
        std::size_t b = 0;
        while (b + 1 < blocks_.size() && before + blocks_[b].weight <= left) before += blocks_[b++].weight;
        return token_in_block(static_cast<int64_t>(b) * BLOCK, left - before);
    }

    // Added up one by one a block may weigh less by a rounding: then it is the last token that weighs anything.
    int64_t token_in_block(int64_t first, double left) const {
        int64_t found = first;
        double before = 0;
        for (int64_t i = first; i < end_of_block(first); i += LANES) {
            Floats weights = exp_of_negative(exponents(read(i)));
            for (int lane = 0; lane < LANES; ++lane) {
                if (!(weights[lane] > 0)) continue;
                found = i + lane;
                if ((before += weights[lane]) > left) return found;
            }
        }
        return found;
    }

    // No more than the `count`th logit in the order: so many blocks have one that is as large.
    float bound_of_first(int64_t count) {
        if (count > static_cast<int64_t>(blocks_.size())) return LEAST;
        order_.clear();
        for_blocks([&](OfBlock& block, int64_t first, int64_t) { order_.push_back({block.largest, 0, static_cast<int32_t>(first)}); });
        std::nth_element(order_.begin(), order_.begin() + (count - 1), order_.end());
        return order_[count - 1].logit;
    }

    // Tokens within all bounds, by id.
    void collect(const Bounds& bounds) {
        likely_.clear();
        for_blocks([&](OfBlock& block, int64_t first, int64_t last) {
            if (block.largest < bounds.logit || (block.largest - largest_) * inverse_ < bounds.exponent) return;
            for (int64_t i = first; i < last; i += LANES) {
                Floats logits = read(i), exponent = exponents(logits);
                Ints within = (logits >= bounds.logit) & (exponent >= bounds.exponent);
                if (!any(within)) continue;
                Floats weights = exp_of_negative(exponent);
                for (int lane = 0; lane < LANES; ++lane)
                    if (within[lane] && i + lane < vocab_size_ && weights[lane] >= bounds.weight)
                        likely_.push_back({logits[lane], weights[lane], static_cast<int32_t>(i) + lane});
            }
        });
    }

    int64_t draw_of_likely(const DrawnRow& row, int64_t top_k) {
        double total = 0;
        if (top_k == 0 && row.min_p <= 0) {
            total = collect_nucleus(row.top_p);
        } else {
            float exponent = row.min_p > 0 ? __builtin_logf(static_cast<float>(row.min_p)) - SLACK : LEAST;
            collect({top_k > 0 ? bound_of_first(top_k) : LEAST, exponent, largest(row.min_p, LIGHTEST)});
        }
        order_ = likely_;
        Place first = order_.begin(), last = order_.end();
        Candidate least = NO_TOKEN;
        if (top_k > 0 && top_k < last - first) {
            last = first + top_k;
            std::nth_element(first, last - 1, order_.end());
            least = *(last - 1);
        }
        if (row.top_p < 1) least = last_of_nucleus(first, last, row.top_p * (total > 0 ? total : weight_of(first, last)), least);
        return draw_down_to(least, row.uniform);
    }

    // More tokens each time, until they hold `top_p` of the weight of all, which is returned. At last all but those so light that V of
    // them would not hold the rest.
    double collect_nucleus(double top_p) {
        double total = weigh_all();
        float lowest = __builtin_logf(static_cast<float>((1 - top_p) * total / static_cast<double>(vocab_size_))) - SLACK;
        for (float exponent = LIKELY;; exponent *= 2) {
            collect({LEAST, largest(exponent, lowest), LIGHTEST});
            if (exponent <= lowest || weight_of(likely_.begin(), likely_.end()) >= top_p * total) return total;
        }
    }

    // Of the fewest first ones that weigh so much: those that are as likely lie in one of many buckets, and only that is divided.
    Candidate last_of_nucleus(Place first, Place last, double wanted, Candidate least) {
        float range = 0;
        for (Place token = first; token != last; ++token) range = largest(range, largest_ - token->logit);
        float buckets_a_logit = range > LEAST_RANGE ? BUCKETS / range : 0;
        auto bucket_of = [&](const Candidate& token) {
            int bucket = static_cast<int>((largest_ - token.logit) * buckets_a_logit);
            return bucket < BUCKETS ? bucket : BUCKETS - 1;
        };
        double weights[BUCKETS] = {};
        for (Place token = first; token != last; ++token) weights[bucket_of(*token)] += token->weight;
        int bucket = 0;
        while (bucket < BUCKETS - 1 && weights[bucket] < wanted) wanted -= weights[bucket++];
        border_.clear();
        for (Place token = first; token != last; ++token)
            if (bucket_of(*token) == bucket) border_.push_back(*token);
        if (border_.empty()) return least;
        return *(fewest_that_weigh(border_.begin(), border_.end(), wanted) - 1);
    }

    // One of the likely tokens down to the `least`.
    int64_t draw_down_to(const Candidate& least, double uniform) const {
        double total = 0, before = 0;
        for (const Candidate& token : likely_)
            if (!(least < token)) total += token.weight;
        int64_t found = 0;
        for (const Candidate& token : likely_) {
            if (least < token || !(token.weight > 0)) continue;
            found = token.token_id;
            if ((before += token.weight) > uniform * total) break;
        }
        return found;
    }

    int64_t place_of(int64_t token_id) const {
        Floats logit = fill(logits_[token_id]);
        Ints before = {};
        for (int64_t i = 0; i < vocab_size_; i += LANES) {
            Floats logits = read(i);
            before -= logits > logit;
            if (i + LANES <= token_id) before -= logits == logit;
        }
        int64_t place = 1 + sum_of(before);
        for (int64_t i = token_id / LANES * LANES; i < token_id; ++i) place += logits_[i] == logits_[token_id];
        return place;
    }

    const float* logits_ = nullptr;
    int64_t vocab_size_;
    float inverse_ = 1, largest_ = LEAST;
    std::vector<OfBlock> blocks_;
    Candidates likely_, order_, border_;  // by id; as they are divided; around the end of a nucleus
};

}  // namespace

void draw(const DrawCall& call, const Team& team) {
    Row row(call.vocab_size);
    hand_out(team, static_cast<int64_t>(call.rows->size()), 1, [&](int64_t i) { call.token_ids[i] = row.draw((*call.rows)[i]); });
}

void logprobs(const LogprobsCall& call, const Team& team) {
    Row row(call.vocab_size);
    hand_out(team, static_cast<int64_t>(call.rows->size()), 1, [&](int64_t i) {
        const LogprobsRow& wanted = (*call.rows)[i];
        call.ranks[i] = row.rank(wanted, call.token_ids + wanted.first, call.logprobs + wanted.first);
    });
}

}  // namespace quire::QUIRE_ISA
