// Which rows go to which experts of a layer: the rows of an expert lie side by side, so that its weights are read once, and
// those of experts that no row takes are never read.
#pragma once
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "decoder.h"

namespace aio {

// Slots [first, last) are the rows of one expert, `row` of each; `weight`: of its result.
struct ExpertRows {
  struct Taken {
    int expert, first, last;
  };
  // Panels of one part of one projection: units [first_unit, ...) of two panels each.
  struct Task {
    const Projection* projection;
    const LinearPart* part;
    int slots, last_slot, column, first_unit;
  };

  std::vector<Taken> taken;
  std::vector<int32_t> row;        // [slots]
  std::vector<float> weight;       // [slots]
  std::vector<int32_t> slots_of;   // [rows, per token], by ascending expert
  std::vector<Task> gate_up, down;
  int gate_up_units = 0, down_units = 0;

  // `logits` float32 [rows, experts], of which each row takes the `per_token` greatest, the first of equal ones. Their
  // weights are the softmax over all experts, over those that are taken where they are normalised. A row's choice, and
  // the order in which its results are added, depend on it alone.
  void assign(const float* logits, int rows, int per_token, bool normalise, const Experts& experts) {
    const int count = int(experts.down.size());
    chosen_.resize(size_t(rows) * size_t(per_token));
    std::vector<int> order(static_cast<size_t>(count)), begin(size_t(count) + 1, 0);
    for (int r = 0; r < rows; ++r) {
      const float* z = logits + int64_t(r) * count;
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [z](int a, int b) { return z[a] > z[b]; });
      float total = 0;
      for (int e = 0; e < (normalise ? per_token : count); ++e) total += std::exp(z[order[size_t(e)]] - z[order[0]]);
      Choice* mine = chosen_.data() + int64_t(r) * per_token;
      for (int k = 0; k < per_token; ++k) {
        const int expert = order[size_t(k)];
        mine[k] = {expert, std::exp(z[expert] - z[order[0]]) / total};
        ++begin[size_t(expert) + 1];
      }
      std::sort(mine, mine + per_token, [](const Choice& a, const Choice& b) { return a.expert < b.expert; });
    }
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    taken.clear();
    for (int e = 0; e < count; ++e)
      if (begin[size_t(e)] < begin[size_t(e) + 1]) taken.push_back({e, begin[size_t(e)], begin[size_t(e) + 1]});
    row.resize(chosen_.size());
    weight.resize(chosen_.size());
    slots_of.resize(chosen_.size());
    for (size_t i = 0; i < chosen_.size(); ++i) {
      const int slot = begin[size_t(chosen_[i].expert)]++;
      row[size_t(slot)] = int32_t(i / size_t(per_token));
      weight[size_t(slot)] = chosen_[i].weight;
      slots_of[i] = slot;
    }
    gate_up_units = list(experts.gate_up, gate_up);
    down_units = list(experts.down, down);
  }

 private:
  struct Choice {
    int expert;
    float weight;
  };

  int list(const std::vector<Projection>& projections, std::vector<Task>& tasks) const {
    int units = 0;
    tasks.clear();
    for (const Taken& t : taken) {
      const Projection& p = projections[size_t(t.expert)];
      int column = 0;
      for (const LinearPart& part : p.parts) {
        tasks.push_back({&p, &part, t.first, t.last, column, units});
        units += (part.n + 2 * kLanes - 1) / (2 * kLanes);
        column += part.n;
      }
    }
    return units;
  }

  std::vector<Choice> chosen_;
};

}  // namespace aio
