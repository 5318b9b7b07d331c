#include "attention_items.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace quire {
namespace {

constexpr int ITEMS_A_MEMBER = 4;  // so that members end together

bool can_share(const AttentionCall& call) { return call.window == 0 && call.causal; }

// Rows that begin with the same chunk of keys follow the first of them; else rows stay where they are.
std::vector<int64_t> order_of_rows(const AttentionCall& call) {
    std::vector<int64_t> order(static_cast<std::size_t>(call.num_rows));
    std::iota(order.begin(), order.end(), int64_t{0});
    if (!can_share(call) || call.num_rows < 3) return order;
    std::vector<std::pair<int64_t, int64_t>> rows;  // by the block that ends their first chunk
    for (int64_t row : order)
        if (call.context_lens[row] >= KEYS) rows.push_back({call.block_tables[row * call.max_blocks + (KEYS - 1) / call.layout.block_size], row});
    std::sort(rows.begin(), rows.end());
    std::vector<int64_t> first = order;
    bool apart = false;
    for (std::size_t i = 1; i < rows.size(); ++i) {
        if (rows[i].first != rows[i - 1].first) continue;
        first[rows[i].second] = first[rows[i - 1].second];
        apart = apart || rows[i].second != rows[i - 1].second + 1;
    }
    if (apart) std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return first[a] < first[b]; });
    return order;
}

// Keys that both parts' rows begin with and that all of their tokens see, in whole chunks.
int64_t common_keys(const AttentionCall& call, const Part& a, const Part& b) {
    int64_t block_size = call.layout.block_size;
    if (!can_share(call)) return 0;
    auto seen = [&](const Part& part) { return call.context_lens[part.row] - call.query_starts[part.row + 1] + part.first + 1; };
    int64_t most = std::max<int64_t>(0, std::min(seen(a), seen(b))) / block_size, count = 0;
    const int64_t *table = call.block_tables + a.row * call.max_blocks, *other = call.block_tables + b.row * call.max_blocks;
    while (count < most && table[count] == other[count]) ++count;
    return count * block_size / KEYS * KEYS;
}

std::vector<Part> parts_of(const AttentionCall& call) {
    int tokens = std::max(1, MAX_QUERIES / (call.num_heads / call.layout.num_kv_heads));
    std::vector<Part> parts;
    for (int64_t row : order_of_rows(call))
        for (int64_t last = call.query_starts[row + 1]; last > call.query_starts[row]; last -= tokens)
            parts.push_back({row, std::max(call.query_starts[row], last - tokens), last});
    return parts;
}

// Neighbours that share keys, as many as there is room for and as leave work for all threads.
std::vector<Item> groups_of(const AttentionCall& call, const std::vector<Part>& parts, int num_threads) {
    int heads = call.num_heads / call.layout.num_kv_heads, num_parts = static_cast<int>(parts.size());
    int cuts = (2 * num_threads + call.layout.num_kv_heads - 1) / call.layout.num_kv_heads, most = (num_parts + cuts - 1) / cuts;
    std::vector<Item> groups;
    for (int first = 0; first < num_parts;) {
        auto queries = [&](int p) { return static_cast<int>(parts[p].last - parts[p].first) * heads; };
        int64_t shared = 0;
        int last = first + 1, num_queries = queries(first);
        for (; last < num_parts && last - first < most; num_queries += queries(last++)) {
            int64_t common = num_queries + queries(last) <= MAX_QUERIES ? common_keys(call, parts[first], parts[last]) : 0;
            // A row that shares far less would let the others read theirs again.
            if (common == 0 || 2 * common < shared) break;
            shared = last == first + 1 ? common : std::min(common, shared);
        }
        groups.push_back({&parts[first], last - first, {0, 1}, num_queries, shared});
        first = last;
    }
    return groups;
}

// How many KV heads an item has where a part has `num_queries` for each. A block's heads lie side by side, and memory reads longer pieces faster; but
// the next chunk for all of them has to fit in the second cache beside this one.
int heads_of_item(const AttentionCall& call, int num_queries) {
    constexpr int64_t MOST_VALUES = 32 << 10;  // K and V of a chunk
    int64_t fit = MOST_VALUES / (2 * KEYS * call.layout.head_dim);
    return static_cast<int>(std::clamp<int64_t>(std::min<int64_t>(fit, MAX_QUERIES / num_queries), 1, call.layout.num_kv_heads));
}

// Each group for each KV head. A row's parts go head by head: what they all read, one head's keys, stays in the second cache. But where many rows
// have a group alone, as when they decode, several of its heads are one item.
std::vector<Item> items_of(const AttentionCall& call, const std::vector<Part>& parts, int num_threads, bool heads_together) {
    std::vector<Item> groups = groups_of(call, parts, num_threads), items;
    bool together = heads_together && static_cast<int>(groups.size()) >= ITEMS_A_MEMBER * num_threads;
    for (auto first = groups.begin(); first != groups.end();) {
        auto last = std::find_if(first + 1, groups.end(), [&](const Item& group) { return group.parts->row != first->parts->row; });
        int num_heads = call.layout.num_kv_heads;
        int count = together && last - first == 1 && first->num_parts == 1 ? heads_of_item(call, first->num_queries) : 1;
        for (int head = 0; head < num_heads; head += count)
            for (auto group = first; group != last; ++group) {
                Heads heads{head, std::min(count, num_heads - head)};
                items.push_back({group->parts, group->num_parts, heads, group->num_queries * heads.count, group->shared});
            }
        first = last;
    }
    return items;
}

}  // namespace

Keys own_keys(const AttentionCall& call, const Part& part, Heads kv_heads, int64_t shared) {
    int64_t context = call.context_lens[part.row], start = context - call.query_starts[part.row + 1];
    int64_t low = call.window ? std::max<int64_t>(0, start + part.first - call.window + 1) : 0;
    return {part.row, std::max(low / KEYS * KEYS, shared), low, call.causal ? start + part.last : context, kv_heads};
}

AttentionItems::AttentionItems(const AttentionCall& call, int num_threads, bool heads_together)
    : parts_(parts_of(call)), items_(items_of(call, parts_, num_threads, heads_together)) {}
AttentionItems::~AttentionItems() = default;
int AttentionItems::most_queries() const {
    int most = 1;
    for (const Item& item : items_) most = std::max(most, item.num_queries);
    return most;
}
int64_t AttentionItems::size() const { return static_cast<int64_t>(items_.size()); }
const Item& AttentionItems::operator[](int64_t i) const { return items_[i]; }

}  // namespace quire
