"""Deliberate faults of the library, each with the tests that must notice it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One small change that makes the library wrong.

    Attributes:
        name: unique.
        file: the changed file, relative to the repository.
        old: text that occurs exactly once in it.
        new: text that takes its place.
        tests: arguments of pytest that select the tests, of which one must fail.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def _only(file: str, names: str) -> tuple[str, ...]:
    return (file, "-k", names)


GREEDY_FUZZ = _only("tests/exact/test_fuzz.py", "greedy")
OWN_DRAFT = _only("tests/exact/test_coupled.py", "always_right and onevision and chain5")
DRAW_FUZZ = _only("tests/exact/test_fuzz.py", "draws")
JOIN_FUZZ = _only("tests/exact/test_fuzz.py", "join")
IN_BLOCKS = _only("tests/exact/test_spava.py", "it_is_approximate")
TABLES = _only("tests/exact/test_rules.py", "greedy_is_token_identical")
REJECTION = ("tests/unit/core/test_verify.py",)
SAMPLING = ("tests/unit/core/test_sampling.py",)
BATCH = ("tests/unit/core/test_batch.py",)
IN_STEP = _only("tests/exact/test_endings.py", "rows_in_step")
STOPPING = ("tests/unit/core/test_stopping.py",)
GROWTH = ("tests/unit/drafting/test_growth.py",)
DRAFTER = ("tests/unit/drafting/test_model_drafter.py",)
ROWS = ("tests/unit/drafting/test_draft_rows.py",)
CACHE = ("tests/unit/models/test_cache.py",)
PROMPT = ("tests/unit/models/test_prompt.py",)
PRUNED = ("tests/unit/drafting/test_pruned.py",)
SIMILARITY_ROWS = _only("tests/unit/models/attention/test_similarity.py", "rows_of_all_kinds")
SIMILARITY_SUM = _only("tests/unit/models/attention/test_similarity.py", "telescopes")
SIMILARITY_EARLY = _only("tests/unit/models/attention/test_similarity.py", "early")
GATHER = ("tests/unit/models/test_prompt_subset.py",)
LOSSY_MASKS = _only("tests/exact/test_lossy_peers.py", "masks_hid_them and qwen3 and FastV")
LOSSY_RECALL = _only("tests/exact/test_lossy_peers.py", "come_back and onevision")
LOSSY_STEPS = _only("tests/exact/test_lossy_peers.py", "acceptance_in_one_pass and onevision")
PARALLEL_DRAFTER = ("tests/unit/methods/parallelvlm/test_parallel_drafter.py",)
WORKER = ("tests/unit/methods/parallelvlm/test_worker.py",)
NEXT_GUESS = _only("tests/exact/test_rules.py", "next_guess")
PARALLEL_WARPED = _only("tests/exact/test_parallel_rejection.py", "keeps and warped and far")
PARCELS = ("tests/unit/processes/test_parcels.py",)
SCHEDULE = ("tests/unit/methods/parallelvlm/test_schedule.py",)
PACKED = ("tests/unit/methods/tabed/test_view_rows.py",)
MIXTURE = _only("tests/unit/methods/tabed/test_ensemble.py", "every_node")
WEIGHED = _only("tests/unit/methods/tabed/test_ensemble.py", "weighed_once")
EQUAL_VIEWS = _only("tests/unit/methods/tabed/test_ensemble.py", "row_without_pictures")
MIXED_TABLES = _only("tests/exact/test_tabed.py", "rejection_keeps or equal_tables")
PREFIXES = ("tests/unit/methods/lookup/test_prefix_tree.py",)
MATCHING = ("tests/unit/methods/lookup/test_matching.py",)
MATCH_RATES = ("tests/unit/methods/lookup/test_match_rates.py",)
LOOKUP = ("tests/unit/methods/lookup/test_lookup.py",)
DOCUMENT = ("tests/unit/methods/hsd/test_document.py",)
REFERENCES = ("tests/exact/test_references.py",)
COMPILED = ("tests/exact/test_compiled.py",)
PRODUCTS = ("tests/unit/models/test_products.py",)
GROUPED = ("tests/unit/models/attention/test_grouped.py",)
READ_BY_OPENVINO = ("tests/exact/test_openvino.py", "-k", "prompts")
COMPILED_PRODUCTS = ("tests/unit/compile/test_products.py",)
BLOCKS = ("tests/unit/prefill/spava/test_blocks.py",)
BLOCK_ROWS = ("tests/unit/prefill/spava/test_rows.py",)
MERGE = ("tests/unit/prefill/spava/test_merge.py",)
SPREAD = ("tests/unit/prefill/spava/test_spread.py",)
SHARDED = ("tests/unit/prefill/spava/test_sharded_cache.py",)
KEEPING = ("tests/unit/prefill/spava/test_keeping.py",)
VISION_SHARES = _only(
    "tests/unit/prefill/spava/test_vision_by_hosts.py", "onevision or qwen3 or smolvlm"
)
MEETING = ("tests/unit/prefill/spava/test_meeting.py",)
PROMPT_TREE = ("tests/unit/models/test_prefix_tree.py",)
PROMPT_CACHE = ("tests/unit/models/test_prompt_cache.py",)
DIGESTS = ("tests/unit/models/test_token_digests.py",)
WHOLE_MEDIA = _only("tests/exact/test_turns.py", "every_place and onevision")
NAMESPACES = _only("tests/exact/test_turns.py", "namespaces_share")
PROBED = _only("tests/exact/test_turns.py", "guides_a_pruner")
IN_PARTS = _only("tests/exact/test_turns.py", "parts_of_any_size and (onevision or qwen3)")
STORED = _only("tests/exact/test_turns.py", "their_own_tokens")
PART_SIZE = ("tests/unit/decoding/test_part_size.py",)
TURNS = _only("tests/exact/test_turns.py", "three_turns and plain and (onevision or qwen3)")
PARTS = _only("tests/exact/test_parts.py", "llava_next and chain")
LEAVING = _only("tests/unit/decoding/test_loop.py", "running_rows_only")
UNREAD = _only("tests/exact/test_joining.py", "ends_before_its_draft")
SCHEDULER = _only("tests/unit/scheduling/test_scheduler.py", "share_a_session")
SAMPLES = _only("tests/unit/scheduling/test_scheduler.py", "samples_have_seeds")
CANCELLED = _only("tests/unit/scheduling/test_scheduler.py", "leaves_within_a_round")
WAITING = _only("tests/unit/scheduling/test_scheduler.py", "waiting_job")
FAILING = _only("tests/unit/scheduling/test_scheduler.py", "an_error_in")
ROOM = _only("tests/unit/scheduling/test_scheduler.py", "as_the_longest")
CLIENTS = _only("tests/unit/scheduling/test_scheduler.py", "take_turns")

WORDS = ("tests/unit/drafting/test_text_inputs.py",)
RETOKENIZED = ("tests/exact/test_retokenized.py",)
RETOKENIZED_ROWS = ("tests/unit/drafting/test_retokenized.py",)
LANGUAGE_DRAFT = _only("tests/exact/test_language_drafts.py", "ragged and qwen2_5")
LANGUAGE_AHEAD = _only("tests/exact/test_language_drafts.py", "ahead and qwen2_5")
LANGUAGE_INSIDE = _only("tests/exact/test_language_drafts.py", "inside and chain and qwen2_5")

FAULTS = (
    Fault(
        "match: a sibling of the right guess is accepted",
        "draftlens/core/verify.py",
        "            path.append(node)\n    return",
        "            node = children[0]\n            path.append(node)\n    return",
        _only("tests/exact/test_rules.py", "slow_walk"),
    ),
    Fault(
        "match: the bonus token is chosen at the parent",
        "draftlens/core/verify.py",
        "choice = choices[node + 1]",
        "choice = choices[node + 1 if path[1:] else 0]",
        _only("tests/exact/test_rules.py", "slow_walk"),
    ),
    Fault(
        "reject: the distribution is that of the parent",
        "draftlens/core/verify.py",
        "rest = p[node + 1]",
        "rest = p[max(node, 0)]",
        REJECTION,
    ),
    Fault(
        "reject: q keeps a rejected token",
        "draftlens/core/verify.py",
        "        q[token] = 0\n",
        "",
        REJECTION,
    ),
    Fault(
        "reject: p is not normalised",
        "draftlens/core/verify.py",
        "p = rest / rest.sum()",
        "p = rest",
        REJECTION,
    ),
    Fault(
        "reject: q is not normalised",
        "draftlens/core/verify.py",
        "        q = q / q.sum().clamp_min(torch.finfo(q.dtype).tiny)\n",
        "",
        REJECTION,
    ),
    Fault(
        "reject: p and q change places",
        "draftlens/core/verify.py",
        "* q[token] < p[token]",
        "* p[token] < q[token]",
        REJECTION,
    ),
    Fault(
        "noise does not depend on the step",
        "draftlens/core/sampling.py",
        "+ steps)\n    bits",
        "+ 0 * steps)\n    bits",
        SAMPLING,
    ),
    Fault(
        "rows of a call share their seed",
        "draftlens/core/sampling.py",
        "(seed + row * _GOLDEN_GAMMA)",
        "(seed + 0 * row)",
        SAMPLING,
    ),
    Fault(
        "rows of a batch share their noise",
        "draftlens/core/sampling.py",
        "gumbel(seeds[:, None], steps,",
        "gumbel(seeds[:1, None], steps,",
        DRAW_FUZZ,
    ),
    Fault(
        "the first logits processor is skipped",
        "draftlens/core/sampling.py",
        "for processor in self.processors:",
        "for processor in self.processors[1:]:",
        SAMPLING,
    ),
    Fault(
        "a logits processor of another row",
        "draftlens/core/sampling.py",
        "group.num_rows, 1))[group.row]",
        "group.num_rows, 1))[0]",
        SAMPLING,
    ),
    Fault(
        "nodes of a level share the history of the first",
        "draftlens/core/batch.py",
        "path_to(topology, nodes[row][place])",
        "path_to(topology, nodes[row][places[0]])",
        BATCH,
    ),
    Fault(
        "a node's history lacks its own token",
        "draftlens/core/batch.py",
        "path_to(topology, nodes[row][place])]",
        "path_to(topology, nodes[row][place])[:-1]]",
        BATCH,
    ),
    Fault(
        "steps count from one",
        "draftlens/core/batch.py",
        "[[h.length] for h",
        "[[h.length + 1] for h",
        BATCH,
    ),
    Fault(
        "calls of a batch exchange their seeds",
        "draftlens/core/batch.py",
        "seeds[rows], steps[rows]",
        "seeds[: len(rows)], steps[rows]",
        BATCH,
    ),
    Fault(
        "drafted siblings have each other's history",
        "draftlens/drafting/growth.py",
        "[self.nodes] * num_rows",
        "[self.nodes[::-1]] * num_rows",
        GROWTH,
    ),
    Fault(
        "drafted children stand at the wrong parent",
        "draftlens/drafting/growth.py",
        "index_select(1, self.choices.to(children.device))",
        "index_select(1, self.choices.flip(0).to(children.device))",
        GROWTH,
    ),
    Fault(
        "the draft draws every level with the noise of the first",
        "draftlens/drafting/model_drafter.py",
        "steps = (first_step + depth)",
        "steps = (first_step + 0 * depth)",
        OWN_DRAFT,
    ),
    Fault(
        "the draft keeps slots that were not accepted",
        "draftlens/drafting/draft_rows.py",
        "self.cache.keep(self._base, slots)",
        "self.cache.keep(self._base, [range(len(row)) for row in slots])",
        ROWS,
    ),
    Fault(
        "the draft forgets a pending token",
        "draftlens/drafting/draft_rows.py",
        "list(tokens[len(row) :])",
        "list(tokens[len(row) + 1 :] or tokens[-1:])",
        ROWS,
    ),
    Fault(
        "positions of pending tokens are one too high",
        "draftlens/drafting/draft_rows.py",
        "indices = steps - count + torch.arange(",
        "indices = steps - count + 1 + torch.arange(",
        DRAFTER,
    ),
    Fault(
        "a row that has ended grows in the draft's cache",
        "draftlens/drafting/draft_rows.py",
        "if history.finished:  #",
        "if not batch:  #",
        DRAFTER,
    ),
    Fault(
        "fillers of shorter rows stay in the draft's cache",
        "draftlens/drafting/draft_rows.py",
        "self.cache.truncate(self._base)",
        "self._base = list(self.cache.lengths)",
        ROWS,
    ),
    Fault(
        "shorter rows are scored behind their fillers",
        "draftlens/drafting/draft_rows.py",
        "logits[rows, count - 1]",
        "logits[:, -1:]",
        ROWS,
    ),
    Fault(
        "a row that moves keeps another row's position",
        "draftlens/core/rows.py",
        "= table[..., -1, :]",
        "= table[..., row, :]",
        ROWS,
    ),
    Fault(
        "guesses attend to each other",
        "draftlens/decoding/session.py",
        "trees.attention_mask(self._base, window)",
        "trees.attention_mask(self._base, torch.ones_like(window))",
        TABLES,
    ),
    Fault(
        "positions of guesses are one too high",
        "draftlens/decoding/session.py",
        "self._batch.steps(device) - 1 + depths",
        "self._batch.steps(device) + depths",
        GREEDY_FUZZ,
    ),
    Fault(
        "the target's cache loses the last accepted token",
        "draftlens/decoding/session.py",
        "][: emission.count]\n                for",
        "][: max(emission.count - 1, 1)]\n                for",
        TABLES,
    ),
    Fault(
        "the target keeps the slot before an accepted guess",
        "draftlens/decoding/session.py",
        "[0, *(node + 1 for node in path)]",
        "[0, *(max(node, 1) for node in path)]",
        TABLES,
    ),
    Fault(
        "trees are one level too deep for the answer",
        "draftlens/decoding/session.py",
        "for sequence in self.sequences) - 1",
        "for sequence in self.sequences)",
        GREEDY_FUZZ,
    ),
    Fault(
        "the draft keeps what rows in step did not emit",
        "draftlens/decoding/session.py",
        "self.drafter.update(_emitted_part(verdict, emissions), self._batch)",
        "self.drafter.update(verdict, self._batch)",
        IN_STEP,
    ),
    Fault(
        "accepted tokens behind the end are counted",
        "draftlens/decoding/recorder.py",
        "accepted = min(emission.count, len(path))",
        "accepted = len(path)",
        GREEDY_FUZZ,
    ),
    Fault(
        "positions of rows that join are those of the first rows",
        "draftlens/decoding/session.py",
        "torch.cat([self._next_position, prompt.next_position], dim=-2)",
        "torch.cat([prompt.next_position, self._next_position], dim=-2)",
        JOIN_FUZZ,
    ),
    Fault(
        "the draft keeps a row that leaves",
        "draftlens/decoding/session.py",
        "            self.drafter.remove(row)\n",
        "",
        JOIN_FUZZ,
    ),
    Fault(
        "keep moves slots in the wrong order",
        "draftlens/models/kv_cache.py",
        "(row, start + slot, start + place)",
        "(row, start + place, start + slot)",
        CACHE,
    ),
    Fault(
        "the row that moves is not copied",
        "draftlens/models/kv_cache.py",
        "layer.buffers.copy_row(last, row, self.lengths[last])",
        "layer.buffers.copy_row(row, row, self.lengths[last])",
        CACHE,
    ),
    Fault(
        "the row that moves keeps the old length",
        "draftlens/models/kv_cache.py",
        "replace_by_last(self.lengths, row)",
        "self.lengths.pop()",
        CACHE,
    ),
    Fault(
        "new rows overwrite the last row",
        "draftlens/models/kv_cache.py",
        "rows.first_row = len(self.lengths)",
        "rows.first_row = len(self.lengths) - 1",
        CACHE,
    ),
    Fault(
        "growing buffers lose their contents",
        "draftlens/models/kv_buffers.py",
        "    grown[:, :old_rows, :, :old_capacity] = buffer\n",
        "",
        CACHE,
    ),
    Fault(
        "accepted guesses of new rows move in the first rows",
        "draftlens/models/kv_cache.py",
        "places = (rows + self.first_row, source, target)",
        "places = (rows, source, target)",
        CACHE,
    ),
    Fault(
        "layers of other shapes share buffers",
        "draftlens/models/kv_buffers.py",
        "(states.shape[1], states.shape[3], states.dtype, states.device)",
        "(stacked.shape[2], states.shape[3], states.dtype, states.device)",
        CACHE,
    ),
    Fault(
        "the token that ends an answer is not emitted",
        "draftlens/core/stopping.py",
        "return Emission(count, finished=True)",
        "return Emission(count - 1, finished=True)",
        STOPPING,
    ),
    Fault(
        "answers are one token too long",
        "draftlens/core/stopping.py",
        "history.length + count >= self.max_new_tokens",
        "history.length + count > self.max_new_tokens",
        STOPPING,
    ),
    Fault(
        "criteria read all tokens of a round at once",
        "draftlens/core/stopping.py",
        "history, tokens[:count]",
        "history, tokens",
        STOPPING,
    ),
    Fault(
        "rows that depend on each other are not in step",
        "draftlens/core/stopping.py",
        "self.in_step = num_rows > 1 and not can_be_alone",
        "self.in_step = False",
        STOPPING,
    ),
    Fault(
        "padding is not moved to the left",
        "draftlens/models/prompt.py",
        "if mask is None or bool((mask[:, -1] != 0).all()):",
        "if mask is None or bool(mask.any()):",
        PROMPT,
    ),
    Fault(
        "the first new token has the position of the last",
        "draftlens/models/prompt.py",
        "last.expand(*positions.shape[:-1], 1)) + 1",
        "last.expand(*positions.shape[:-1], 1))",
        PROMPT,
    ),
    Fault(
        "visual tokens are not put in order with the prompt",
        "draftlens/models/prompt.py",
        "        visual = visual.gather(1, order)\n",
        "",
        PROMPT,
    ),
    Fault(
        "tokens that follow a prompt stand behind the padding",
        "draftlens/models/prompt.py",
        "            longer[rows, slots] = new\n",
        "",
        PROMPT,
    ),
    Fault(
        "tokens that follow a prompt have the positions of the padding",
        "draftlens/models/prompt.py",
        "        position_ids[..., rows, slots] = positions\n",
        "",
        PROMPT,
    ),
    Fault(
        "a prefill with several logits returns those of the last token alone",
        "draftlens/models/adapter.py",
        "last = ends - count + torch",
        "last = ends - 1 + 0 * torch",
        LOSSY_STEPS,
    ),
    Fault(
        "tokens of a chain in one go have the position of the first",
        "draftlens/compile/passes.py",
        "position_ids + step, slots + step",
        "position_ids, slots + step",
        COMPILED,
    ),
    Fault(
        "a chain in one go sees one slot too many",
        "draftlens/compile/passes.py",
        "visible[..., : length + step + 1]",
        "visible[..., : length + step + 2]",
        COMPILED,
    ),
    Fault(
        "packed queries of a group get each other's masks",
        "draftlens/models/attention/gqa.py",
        "mask.repeat(1, 1, shared, 1)",
        "mask.repeat_interleave(shared, 2)",
        GROUPED,
    ),
    Fault(
        "a bias of positions is forgotten where queries are grouped",
        "draftlens/models/attention/gqa.py",
        '("position_bias", "softcap", "cache")',
        '("softcap", "cache")',
        GROUPED,
    ),
    Fault(
        "passes over trees copy the keys of a group",
        "draftlens/models/adapter.py",
        "grouping = self._grouping() if copies_keys else nullcontext()",
        "grouping = nullcontext()",
        GROUPED,
    ),
    Fault(
        "a switch is off when its first user leaves",
        "draftlens/models/attention/switch.py",
        "        if not users.threads:\n            users.config",
        "        if True:\n            users.config",
        GROUPED,
    ),
    Fault(
        "large products lose their bias",
        "draftlens/models/onednn_linear.py",
        "self._products(states, weight, bias[0] if bias else None)",
        "self._products(states, weight, None)",
        PRODUCTS,
    ),
    Fault(
        "exchanged products lose their bias",
        "draftlens/models/onednn_linear.py",
        "return output if bias is None else output + bias",
        "return output",
        PRODUCTS,
    ),
    Fault(
        "the slower way of computing large products is chosen",
        "draftlens/models/onednn_linear.py",
        "min(by_other) <= GAIN * min(by_usual)",
        "min(by_other) > GAIN * min(by_usual)",
        PRODUCTS,
    ),
    Fault(
        "passes over one token use other products than stock",
        "draftlens/models/onednn_linear.py",
        "if 1 < tokens.numel() <= MANY",
        "if tokens.numel() <= MANY",
        PRODUCTS,
    ),
    Fault(
        "passes of two and three tokens wait for oneDNN",
        "draftlens/compile/build.py",
        "if not (shape.is_single or shape.is_few):",
        "if not shape.is_single:",
        COMPILED_PRODUCTS,
    ),
    Fault(
        "large products under autocast keep their precision",
        "draftlens/models/onednn_linear.py",
        ' and not torch.is_autocast_enabled("cpu")',
        "",
        PRODUCTS,
    ),
    Fault(
        "the pruner keeps one token too few",
        "draftlens/drafting/pruning.py",
        "keep_count(len(positions), self.ratio))",
        "max(keep_count(len(positions), self.ratio) - 1, 0))",
        PRUNED,
    ),
    Fault(
        "compact positions do not go on behind the prompt",
        "draftlens/models/prompt_subset.py",
        "= new[:, -1:] + gap",
        "= new[:, -1:]",
        GATHER,
    ),
    Fault(
        "features of the next visual token are gathered",
        "draftlens/models/prompt_subset.py",
        ".view(selection.visual.shape) - 1",
        ".view(selection.visual.shape) % int(selection.visual.sum())",
        GATHER,
    ),
    Fault(
        "lossy: features between layers are those of the first visual tokens",
        "lab/draftlens_lab/bench/lossy/prefill.py",
        "+= features[rows]",
        "+= features[: len(rows)]",
        LOSSY_MASKS,
    ),
    Fault(
        "lossy: kept tokens move to the first positions",
        "lab/draftlens_lab/bench/lossy/prefill.py",
        "_gathered(self.name, kwargs, self.kept,",
        "_gathered(self.name, kwargs, torch.arange(len(self.kept)),",
        LOSSY_MASKS,
    ),
    Fault(
        "lossy: the caches of layers in front of a drop count as shorter",
        "lab/draftlens_lab/bench/lossy/prefill.py",
        "        self.kept_by_layer.append(self.kept)\n",
        "        self.kept_by_layer.append(self.kept)\n        self.kept_by_layer[0] = self.kept\n",
        LOSSY_MASKS,
    ),
    Fault(
        "lossy: a new choice leaves tokens of the last one in the cache",
        "lab/draftlens_lab/bench/lossy/recall.py",
        "others = slice(self.num_chosen, None)",
        "others = slice(0, None)",
        LOSSY_RECALL,
    ),
    Fault(
        "lossy: tokens are judged by the logits behind them",
        "lab/draftlens_lab/bench/lossy/acceptance.py",
        "logits[:, index])",
        "logits[:, min(index + 1, len(tokens) - 1)])",
        LOSSY_STEPS,
    ),
    Fault(
        "uv: the similarity of the embeddings is not subtracted",
        "draftlens/pruning/similarity.py",
        "return last - readings.similarities[self._first]",
        "return last",
        SIMILARITY_SUM,
    ),
    Fault(
        "uv: attention varies from no layer",
        "draftlens/pruning/similarity.py",
        "return last - layers[0] if self.variation else last",
        "return last",
        _only("tests/unit/models/attention/test_similarity.py", "attention_of_one_layer"),
    ),
    Fault(
        "similarity: padding counts as text",
        "draftlens/models/attention/similarities.py",
        "is_visual = visual[row, :length]",
        "is_visual = visual[row]",
        SIMILARITY_ROWS,
    ),
    Fault(
        "similarity: text in front of the pictures counts as behind them",
        "draftlens/models/attention/similarities.py",
        "is_visual.cumsum(0) > 0",
        "is_visual.cumsum(0) >= 0",
        SIMILARITY_ROWS,
    ),
    Fault(
        "similarity: long states of text weigh more",
        "draftlens/models/attention/similarities.py",
        "direction = direction + _directions(states, part).sum(0)",
        "direction = direction + states[part].float().sum(0)",
        SIMILARITY_ROWS,
    ),
    Fault(
        "similarity: norms are taken in half precision",
        "draftlens/models/attention/similarities.py",
        "normalize(states[tokens].float(), dim=-1)",
        "normalize(states[tokens], dim=-1).float()",
        _only("tests/unit/models/attention/test_similarity.py", "half_precision"),
    ),
    Fault(
        "readings: the last layer may be read, where nothing is hidden any more",
        "draftlens/core/prefill_readings.py",
        "7 * num_layers // 10",
        "num_layers",
        _only("tests/unit/models/attention/test_similarity.py", "hide_something"),
    ),
    Fault(
        "readings: they are handed over before the last is taken",
        "draftlens/prefill/collector.py",
        "if layer == self.layers[-1] and",
        "if layer == self.layers[0] and",
        SIMILARITY_EARLY,
    ),
    Fault(
        "readings: those without attention are handed over where attention is wanted",
        "draftlens/prefill/collector.py",
        "self._early is not None and not self._spec.attention",
        "self._early is not None",
        SIMILARITY_EARLY,
    ),
    Fault(
        "hooks: passes of other threads are read",
        "draftlens/models/capture.py",
        "if get_ident() == thread:\n            receive(layer, args[0]",
        "if thread:\n            receive(layer, args[0]",
        _only("tests/unit/models/attention/test_similarity.py", "other_threads"),
    ),
    Fault(
        "the pruner's own score does not reach it",
        "draftlens/drafting/pruning.py",
        "target_scores = spec.scores(context.readings)",
        "target_scores = context.readings.attention",
        _only("tests/unit/drafting/test_pruned.py", "similarities"),
    ),
    Fault(
        "parallel: a contradiction does not shorten the draft's cache",
        "draftlens/drafting/draft_rows.py",
        "min(self.cache.lengths[row], longest)",
        "self.cache.lengths[row]",
        WORKER,
    ),
    Fault(
        "parallel: a row that lags behind the answer keeps its epoch",
        "draftlens/methods/parallelvlm/speculated_rows.py",
        "        self.tokens[same:] = ",
        "        self.epoch -= int(same == len(self.tokens))\n        self.tokens[same:] = ",
        WORKER,
    ),
    Fault(
        "parallel: guesses that still stand are read again",
        "draftlens/methods/parallelvlm/speculated_rows.py",
        "return len(self.tokens)",
        "return same",
        WORKER,
    ),
    Fault(
        "parallel: a row goes on beyond its limit",
        "draftlens/methods/parallelvlm/speculated_rows.py",
        "len(row.tokens) < row.limit",
        "len(row.tokens) <= row.limit",
        WORKER,
    ),
    Fault(
        "parallel: a row that has ended goes on",
        "draftlens/methods/parallelvlm/speculated_rows.py",
        "is_readable and not row.finished and",
        "is_readable and",
        WORKER,
    ),
    Fault(
        "parallel: a waiting row keeps its filler",
        "draftlens/drafting/draft_rows.py",
        "self.cache.truncate(self._base)",
        "self.cache.truncate([length + max(counts) for length in start])",
        WORKER,
    ),
    Fault(
        "parallel: an error ends all sessions of the worker",
        "draftlens/methods/parallelvlm/draft_side.py",
        "            self._forget(number)\n            self._send(Failed",
        "            self._sessions.clear()\n            self._turns.clear()\n            self._send(Failed",
        WORKER,
    ),
    Fault(
        "parallel: tokens of an old epoch are taken",
        "draftlens/methods/parallelvlm/target_rows.py",
        "        self.tokens.append(drafted.token)\n        if not self.agrees:",
        "        self.agrees = True\n        self.tokens.append(drafted.token)\n        if not self.agrees:",
        PARALLEL_DRAFTER,
    ),
    Fault(
        "parallel: the limit is not sent",
        "draftlens/methods/parallelvlm/target_rows.py",
        "gained, self.limit, self.finished",
        "gained, self.room, self.finished",
        PARALLEL_DRAFTER,
    ),
    Fault(
        "parallel: tokens that came since the end of the round are proposed",
        "draftlens/methods/parallelvlm/target_rows.py",
        "return self.tokens[self.num_decided : self.met]",
        "return self.tokens[self.num_decided :]",
        PARALLEL_DRAFTER,
    ),
    Fault(
        "parallel: the draft writes beyond the end of the answer",
        "draftlens/methods/parallelvlm/target_side.py",
        "row.limit = min(limit, row.room)",
        "row.limit = limit",
        PARALLEL_DRAFTER,
    ),
    Fault(
        "parallel: the bonus is drawn from p and compared",
        "draftlens/core/verify.py",
        "    if proposal is not None:",
        "    if proposal is not None and proposal.token < 0:",
        NEXT_GUESS,
    ),
    Fault(
        "parallel: a next guess is judged behind a wrong guess",
        "draftlens/core/verify.py",
        "None if children else next_proposal",
        "next_proposal",
        NEXT_GUESS,
    ),
    Fault(
        "parallel: the next guess is that after the whole window",
        "draftlens/methods/parallelvlm/target_rows.py",
        "position = self.num_decided + depth",
        "position = self.met",
        PARALLEL_DRAFTER,
    ),
    Fault(
        "parallel: tokens keep the probabilities of a rejected hypothesis",
        "draftlens/methods/parallelvlm/target_rows.py",
        "            self.probs.clear()\n",
        "",
        PARALLEL_DRAFTER,
    ),
    Fault(
        "parallel: a guess comes with unprocessed probabilities",
        "draftlens/methods/parallelvlm/speculated_rows.py",
        "probs = _probabilities(batch, scores[:, 0])",
        "probs = _probabilities(batch, logits[:, 0])",
        PARALLEL_WARPED,
    ),
    Fault(
        "parallel: a token that comes late is not compared",
        "draftlens/methods/parallelvlm/target_rows.py",
        "if drafted.position < self.num_decided else []",
        "if drafted.position < 0 else []",
        PARALLEL_DRAFTER,
    ),
    Fault(
        "parallel: a pause of the consumer counts as silence",
        "draftlens/methods/parallelvlm/worker_session.py",
        "        heard_at = time.perf_counter()\n        timeout = 0.0",
        '        heard_at = vars(self).setdefault("_began", time.perf_counter())\n        timeout = 0.0',
        PARALLEL_DRAFTER,
    ),
    Fault(
        "parallel: a request that cannot be sent ends the drafting",
        "draftlens/methods/parallelvlm/target_side.py",
        "            if self._is_parallel is None:\n                logger",
        "            if False:\n                logger",
        PARALLEL_DRAFTER,
    ),
    Fault(
        "parallel: weights are copied instead of shared",
        "draftlens/processes/shared_model.py",
        "tensor.data = shared.tensors[name].data",
        "tensor.data = shared.tensors[name].data.clone()",
        PARCELS,
    ),
    Fault(
        "parallel: the channel loses the second file",
        "draftlens/processes/channel.py",
        "self._files += files",
        "self._files += files[:1]",
        PARCELS,
    ),
    Fault(
        "parallel: a closed channel keeps the files of its messages",
        "draftlens/processes/channel.py",
        "            _close(self._outgoing.popleft().files)",
        "            self._outgoing.popleft()",
        PARCELS,
    ),
    Fault(
        "parallel: the window ignores how often tokens are accepted",
        "draftlens/methods/parallelvlm/schedule.py",
        "        rate = self.rate\n",
        "        rate = 0.5\n",
        SCHEDULE,
    ),
    Fault(
        "tabed: weights go on from another node of the level above",
        "draftlens/methods/tabed/ensemble.py",
        "weights = weights[:, :, parents]",
        "weights = weights[:, :, [0] * len(parents)]",
        MIXTURE,
    ),
    Fault(
        "tabed: processors are applied to the mixture",
        "draftlens/methods/tabed/ensemble.py",
        "        return log_mixture(scores, self._weights)",
        "        scores = logits.float().log_softmax(-1)\n"
        "        return nodes.process(log_mixture(scores, self._weights))",
        MIXTURE,
    ),
    Fault(
        "tabed: a view that a row lacks has a weight there",
        "draftlens/methods/tabed/ensemble.py",
        "log_weights[self._chosen[view]] if has_view[view] else -inf for view in awake",
        "log_weights[self._chosen[view]] for view in awake",
        MIXTURE,
    ),
    Fault(
        "tabed: tokens are observed twice",
        "draftlens/methods/tabed/ensemble.py",
        "                self._observe_path(row, verdict, places)",
        "                self._observe_path(row, verdict, places)\n" * 2,
        WEIGHED,
    ),
    Fault(
        "tabed: views with equal prompts are read twice",
        "draftlens/methods/tabed/prompts.py",
        "    return torch.equal(prompt.embeds[row, :length], other.embeds[row, :length])",
        "    return False",
        EQUAL_VIEWS,
    ),
    Fault(
        "tabed: the views' guesses are judged by the noise of another token",
        "draftlens/methods/tabed/weight_updates.py",
        "steps = torch.arange(first, first + num_tokens)",
        "steps = torch.arange(first, first + num_tokens) + 1",
        MIXED_TABLES,
    ),
    Fault(
        "tabed: guesses are drawn from another mixture than verification is told",
        "draftlens/drafting/model_drafter.py",
        "probs.append(torch.softmax(scores.double(), -1))",
        "probs.append(torch.softmax(scores.double() / 2, -1))",
        MIXED_TABLES,
    ),
    Fault(
        "tabed: what a row that ended gives back keeps its owners",
        "draftlens/methods/tabed/view_rows.py",
        "            self._owners[row, last:] = NOBODY\n",
        "",
        PACKED,
    ),
    Fault(
        "tabed: tokens of a view attend to those of other views",
        "draftlens/methods/tabed/view_rows.py",
        "packed = torch.kron(window, same_view)",
        "packed = torch.kron(window, torch.ones_like(same_view))",
        PACKED,
    ),
    Fault(
        "reject: a guess without probabilities is accepted unseen",
        "draftlens/core/verify.py",
        "if tokens[child] == token), None)",
        "), None)",
        _only("tests/exact/test_rules.py", "without_probabilities_are_right"),
    ),
    Fault(
        "candidates that begin alike have different parents",
        "draftlens/methods/lookup/prefix_tree.py",
        "            node = child\n",
        "            node = len(self.tokens) - 1\n",
        PREFIXES,
    ),
    Fault(
        "nodes of a prefix tree stand in the order of insertion",
        "draftlens/methods/lookup/prefix_tree.py",
        "order = list(self.children[ROOT].values())",
        "order = sorted(self.children[ROOT].values(), reverse=True)",
        PREFIXES,
    ),
    Fault(
        "windows go over what must not be guessed",
        "draftlens/methods/lookup/ngram_index.py",
        "self._run = 0 if token == BREAK else self._run + 1",
        "self._run += 1",
        MATCHING,
    ),
    Fault(
        "ids that stand for pixels are guessed",
        "draftlens/methods/lookup/ngram_index.py",
        "and token not in self.excluded",
        "",
        MATCHING,
    ),
    Fault(
        "a cursor stays where it is",
        "draftlens/methods/lookup/ngram_index.py",
        "return place + len(tokens)",
        "return place",
        MATCHING,
    ),
    Fault(
        "a row that leaves takes the texts of another one along",
        "draftlens/methods/lookup/drafter.py",
        "replace_by_last(self._rows, row)",
        "self._rows.pop(row)",
        LOOKUP,
    ),
    Fault(
        "padding is looked up",
        "draftlens/methods/lookup/drafter.py",
        "ids[len(ids) - length :]",
        "ids",
        LOOKUP,
    ),
    Fault(
        "guesses cost as much as their number, whatever the rows",
        "draftlens/methods/lookup/acceptance.py",
        "self.costs.cost(rows * (width + 1), rows, context)",
        "self.costs.cost(rows + width, rows, context)",
        MATCH_RATES,
    ),
    Fault(
        "wrong guesses are forgotten",
        "draftlens/methods/lookup/acceptance.py",
        "(is_correct - chances[place])",
        "(1 - chances[place])",
        MATCH_RATES,
    ),
    Fault(
        "a tolerant walk passes over the end of the answer",
        "draftlens/core/verify.py",
        " or choice in self.eos:",
        ":",
        REJECTION,
    ),
    Fault(
        "letters on both sides of what must not be guessed are one word",
        "draftlens/methods/hsd/reference_text.py",
        "WALL if token == BREAK",
        '"" if token == BREAK',
        DOCUMENT,
    ),
    Fault(
        "a word that is begun is tokenized as a new one",
        "draftlens/methods/hsd/reference_text.py",
        "redone = self.codec.continuation(tail.word, document.text[place:end])",
        "redone = self.codec.encode(document.text[place - 1 : end])",
        DOCUMENT,
    ),
    Fault(
        "a row guesses from the references of the first one",
        "draftlens/methods/hsd/drafter.py",
        "references.of_row(row),",
        "references.of_row(0),",
        REFERENCES,
    ),
    Fault(
        "a text is not found again behind a wrong guess",
        "draftlens/methods/hsd/position.py",
        "self._alignment.extend(self.source.to_symbols(tokens, text))",
        "pass",
        DOCUMENT,
    ),
    Fault(
        "boxes of characters ignore the rotation of their page",
        "draftlens/documents/reading/characters.py",
        "if self.degrees == 90:",
        "if self.degrees == 45:",
        ("tests/unit/documents/reading/test_files.py",),
    ),
    Fault(
        "columns are read across",
        "draftlens/documents/reading/order.py",
        "for count in range(len(bands), 1, -1):",
        "for count in ():",
        ("tests/unit/documents/reading/test_order.py",),
    ),
    Fault(
        "text layers are never doubted",
        "draftlens/documents/reading/trust.py",
        "if empty > (1 - _LEAST_FILLED) * area:",
        "if empty > 2 * area:",
        ("tests/unit/documents/reading/test_pipeline.py",),
    ),
    Fault(
        "placeholders of pictures are a loop",
        "draftlens/core/repetition.py",
        "answers = input_ids[:, self.prompt_length :]",
        "answers = input_ids",
        ("tests/unit/documents/test_parts.py",),
    ),
    Fault(
        "a crop is forgotten",
        "draftlens/documents/crops.py",
        "for crop in sorted(crops, key=lambda crop: (-crop.pixels, -crop.room)):",
        "for crop in [*crops[1:], crops[0]][:-1]:",
        ("tests/unit/documents/test_parts.py",),
    ),
    Fault(
        "joined regions count as exact",
        "draftlens/documents/parser.py",
        "lossless=False,\n                    approximate=names,",
        "lossless=True,\n                    approximate=names,",
        ("tests/unit/documents/test_parse.py",),
    ),
    Fault(
        "pages of another file are taken for parsed",
        "draftlens/documents/output.py",
        "digest.update(chunk)",
        "pass",
        ("tests/unit/documents/test_output.py",),
    ),
    Fault(
        "blocks pass on the keys that the question likes least",
        "draftlens/prefill/spava/passing_keys.py",
        "pooled.topk(count)",
        "pooled.topk(count, largest=False)",
        BLOCKS,
    ),
    Fault(
        "the first token of the question alone chooses passing keys",
        "draftlens/prefill/spava/passing_keys.py",
        "reshape(num_heads, -1, width).mean(1)",
        "reshape(num_heads, -1, width)[:, 0]",
        BLOCKS,
    ),
    Fault(
        "passing values are of other tokens than their keys",
        "draftlens/prefill/spava/one_process_attention.py",
        "taken(value[:, span], places))",
        "taken(value[:, span], places.flip(-1)))",
        BLOCKS,
    ),
    Fault(
        "a block sees its own passing keys twice",
        "draftlens/prefill/spava/one_process_attention.py",
        "        earlier = attend(query[:, span], *shared.states)\n",
        "        before = shared._count\n"
        "        twice = slice(span.start, span.start + blocks.passed(block))\n"
        "        shared.add(key[:, twice], value[:, twice])\n"
        "        earlier = attend(query[:, span], *shared.states)\n"
        "        shared._count = before\n",
        BLOCKS,
    ),
    Fault(
        "a row has more tokens in its blocks than in its context",
        "draftlens/prefill/spava/blocks.py",
        "(part < rest)",
        "(part <= rest)",
        BLOCK_ROWS,
    ),
    Fault(
        "blocks from the back are dealt in the order of those from the front",
        "draftlens/prefill/spava/blocks.py",
        "else 2 * size - 1 - place",
        "else place - size",
        BLOCKS,
    ),
    Fault(
        "the question counts a part of the anchor on two hosts",
        "draftlens/prefill/spava/blocks.py",
        "slice(first, first + sizes[self.rank])",
        "slice(first, first + sizes[self.rank] + 1)",
        BLOCKS,
    ),
    Fault(
        "a prompt that ends with a picture has no question",
        "draftlens/prefill/spava/rows.py",
        "min(last_visual + 1, length - 1)",
        "last_visual + 1",
        BLOCK_ROWS,
    ),
    Fault(
        "a part that saw nothing weighs as much as others",
        "draftlens/prefill/spava/lse_merge.py",
        "torch.where(weights[..., None] > 0, out.to(weights.dtype), 0.0)",
        "out.to(weights.dtype)",
        MERGE,
    ),
    Fault(
        "merged parts forget how much all of them saw",
        "draftlens/prefill/spava/lse_merge.py",
        "base + total.log()",
        "base",
        MERGE,
    ),
    Fault(
        "hosts: several of them hold the same key of the anchor",
        "draftlens/prefill/spava/blocks.py",
        "is_owned[self.anchor_slice] = True",
        "is_owned[: self.blocks.anchor] = True",
        BLOCKS,
    ),
    Fault(
        "hosts: nodes of a tree attend to their siblings",
        "draftlens/prefill/spava/sharded_attention.py",
        "visible=visible",
        "visible=None",
        SPREAD,
    ),
    Fault(
        "hosts: new tokens do not see what other ranks hold",
        "draftlens/prefill/spava/sharded_attention.py",
        "        if kept_row is None:\n",
        "        if kept_row is None or layer == 0:\n",
        SPREAD,
    ),
    Fault(
        "hosts: a probe normalizes by the keys of one rank",
        "draftlens/prefill/spava/sharded_scores.py",
        "torch.stack(arrived).logsumexp(0)",
        "message",
        SPREAD,
    ),
    Fault(
        "hosts: what others hold of a row that has left is not forgotten",
        "draftlens/models/sharded_rows.py",
        "        weakref.finalize(self, hosts.forget, self.number)\n",
        "",
        SHARDED,
    ),
    Fault(
        "hosts: a row that leaves takes what others hold of another one",
        "draftlens/prefill/spava/sharded_cache.py",
        "        self.spread[row] = self.spread[-1]\n",
        "",
        SHARDED,
    ),
    Fault(
        "hosts: keys move to rank 0 though it has no memory for them",
        "draftlens/prefill/spava/kv_placement.py",
        "tokens * shape.bytes_per_token > free_bytes(backbone.device)",
        "tokens * shape.bytes_per_token < 0",
        KEEPING,
    ),
    Fault(
        "vision by hosts: each share of a video ends with the token behind its features",
        "draftlens/models/pixel_split.py",
        "return int(last < self.units)",
        "return 0",
        VISION_SHARES,
    ),
    Fault(
        "vision by hosts: every host encodes the first patches",
        "draftlens/models/pixel_split.py",
        "begin = int(patches[:first].sum())",
        "begin = 0",
        VISION_SHARES,
    ),
    Fault(
        "vision by hosts: features of deeper layers are those of the first share",
        "draftlens/models/media_features.py",
        "    if len(levels) > 1:\n        output.deepstack_features = list(levels[1:])\n",
        "",
        VISION_SHARES,
    ),
    Fault(
        "hosts: each call with a model starts processes",
        "draftlens/prefill/spava/processes/rendezvous.py",
        "            _GROUP.set(backbone.model, group)\n",
        "            pass\n",
        MEETING,
    ),
    Fault(
        "prefill: all rows are divided where the first one's pictures end",
        "draftlens/prefill/spava/rows.py",
        "prompt.visual[row].nonzero()",
        "prompt.visual[0].nonzero()",
        BLOCK_ROWS,
    ),
    Fault(
        "prefill: a result does not say that blocks are approximate",
        "draftlens/prefill/spava/one_process.py",
        "PrefillOutput(logits, readings, approximate, notes)",
        "PrefillOutput(logits, readings, (), notes)",
        GREEDY_FUZZ,
    ),
    Fault(
        "prefill: that of a call is not used",
        "draftlens/streaming.py",
        'with_prefill(method, beside.pop("prefill", None))',
        'with_prefill(method, beside.pop("prefill", None) and None)',
        IN_BLOCKS,
    ),
    Fault(
        "custom generate: the prefill is not used",
        "draftlens/hf_generate/custom_generate.py",
        "with_prefill(resolve(method, draft is not None), prefill)",
        "resolve(method, draft is not None)",
        GREEDY_FUZZ,
    ),
    Fault(
        "custom generate: the caller's seeds are not used",
        "draftlens/hf_generate/custom_generate.py",
        "seed=self.seed,",
        "seed=None,",
        DRAW_FUZZ,
    ),
    Fault(
        "custom generate: answers are padded in front",
        "draftlens/hf_generate/custom_generate.py",
        "row + [prepared.pad_token_id] * (longest - len(row))",
        "[prepared.pad_token_id] * (longest - len(row)) + row",
        GREEDY_FUZZ,
    ),
    Fault(
        "prompt tree: the second part of a split segment has the states of the first",
        "draftlens/models/prefix_tree.py",
        "(k[:, count:].clone(), v[:, count:].clone())",
        "(k[:, :-count].clone(), v[:, :-count].clone())",
        PROMPT_TREE,
    ),
    Fault(
        "prompt tree: a part of a segment keeps the memory of the whole",
        "draftlens/models/prefix_tree.py",
        "(k[:, :count].clone(), v[:, :count].clone())",
        "(k[:, :count], v[:, :count])",
        PROMPT_TREE,
    ),
    Fault(
        "prompt tree: a prompt that leaves a segment goes on after it",
        "draftlens/models/prefix_tree.py",
        "            if shared < len(child):\n",
        "            if not shared:\n",
        PROMPT_TREE,
    ),
    Fault(
        "prompt tree: a split segment is no child of its first part",
        "draftlens/models/prefix_tree.py",
        "    head.children[segment.digests[0].tobytes()] = segment\n",
        "",
        PROMPT_TREE,
    ),
    Fault(
        "prompt tree: a new segment begins one token too early",
        "draftlens/models/prefix_tree.py",
        "Segment(digests[start:].copy(), states(start, len(digests)), node, now)",
        "Segment(digests[start:].copy(), states(max(start - 1, 0), len(digests)), node, now)",
        PROMPT_TREE,
    ),
    Fault(
        "prompt tree: digests are not counted",
        "draftlens/models/prefix_tree.py",
        "return self.digests.nbytes + sum(",
        "return sum(",
        PROMPT_TREE,
    ),
    Fault(
        "prompt cache: features that are there are counted again",
        "draftlens/models/prompt_cache.py",
        "            if key not in self._features:\n",
        "            if True:\n",
        PROMPT_CACHE,
    ),
    Fault(
        "prompt cache: the digests of what is new are not counted",
        "draftlens/models/prefix_tree.py",
        "        return new.nbytes\n",
        "        return new.nbytes - new.digests.nbytes\n",
        PROMPT_CACHE,
    ),
    Fault(
        "prompt cache: models share their entries",
        "draftlens/models/prompt_cache.py",
        "return _NUMBER.get_or_make(model, lambda: next(_NUMBERS))",
        "return 0",
        PROMPT_CACHE,
    ),
    Fault(
        "prompt cache: namespaces share their prompts",
        "draftlens/models/prompt_cache.py",
        "        with self._lock:\n            tree = self._trees.get((_number(model), held.namespace))\n            start = 0",
        '        with self._lock:\n            tree = self._trees.get((_number(model), min((n for _, n in self._trees), default="")))\n            start = 0',
        PROMPT_CACHE,
    ),
    Fault(
        "prompt cache: a restored row is one token too long",
        "draftlens/models/prompt_cache.py",
        "cache.lengths[row] = start",
        "cache.lengths[row] = start + 1",
        PROMPT_CACHE,
    ),
    Fault(
        "prompt cache: more is restored than may be",
        "draftlens/models/prompt_cache.py",
        "tree.match(held.digests[:most])",
        "tree.match(held.digests)",
        PROMPT_CACHE,
    ),
    Fault(
        "prompt cache: segments are restored over each other",
        "draftlens/models/prompt_cache.py",
        "cache.put(row, start, segment.states, shared)",
        "cache.put(row, 0, segment.states, shared)",
        PROMPT_CACHE,
    ),
    Fault(
        "prompt cache: restoring is no use of a prompt",
        "draftlens/models/prompt_cache.py",
        "segment.used = self._tick()\n",
        "self._tick()\n",
        PROMPT_CACHE,
    ),
    Fault(
        "prompt cache: features are older than any prompt",
        "draftlens/models/prompt_cache.py",
        "return leaf is None or features.used < leaf[0].used",
        "return True",
        PROMPT_CACHE,
    ),
    Fault(
        "digests: positions do not count",
        "draftlens/models/token_digests.py",
        "np.concatenate([_bytes(embeds), _bytes(places)], 1)",
        "_bytes(embeds)",
        DIGESTS,
    ),
    Fault(
        "digests: features between layers are those of the first row",
        "draftlens/models/token_digests.py",
        "before = int(prompt.visual[:row].sum())",
        "before = 0",
        DIGESTS,
    ),
    Fault(
        "digests: features between layers are those of the first visual token",
        "draftlens/models/token_digests.py",
        "            place += 1\n",
        "",
        DIGESTS,
    ),
    Fault(
        "digests: the values of media do not count",
        "draftlens/models/token_digests.py",
        "            digest.update(_bytes(value.reshape(1, -1)).tobytes())\n",
        "",
        DIGESTS,
    ),
    Fault(
        "prompt cache: all pictures have the features of the first",
        "draftlens/models/media_features.py",
        'content_digest([("modality", modality), *sorted(arguments.items())])',
        'content_digest([("modality", modality)])',
        TURNS,
    ),
    Fault(
        "prompt cache: the features that it holds are changed",
        "draftlens/models/media_features.py",
        "return copy(output)",
        "return output",
        TURNS,
    ),
    Fault(
        "parts: fast machines read small ones",
        "draftlens/decoding/part_size.py",
        "= seconds / num_tokens",
        "= num_tokens / seconds",
        PART_SIZE,
    ),
    Fault(
        "digests: padding counts",
        "draftlens/models/token_digests.py",
        "length = prompt.lengths[row]",
        "length = prompt.embeds.shape[1]",
        DIGESTS,
    ),
    Fault(
        "prompt cache: a prompt begins inside a picture",
        "draftlens/models/prompt_reading.py",
        "before_media(prompt.visual[row], num_shared)",
        "num_shared",
        WHOLE_MEDIA,
    ),
    Fault(
        "prompt cache: a prompt begins at the last token before a picture's end",
        "draftlens/models/prompt_reading.py",
        "int(text[-1]) + 1 if",
        "int(text[-1]) + 2 if",
        WHOLE_MEDIA,
    ),
    Fault(
        "prompt cache: all requests are of one namespace",
        "draftlens/models/prompt_reading.py",
        "HeldTokens(namespace,",
        'HeldTokens("",',
        NAMESPACES,
    ),
    Fault(
        "prompt cache: nothing is left to read for the logits",
        "draftlens/models/prompt_reading.py",
        "1 if probe is None else READERS",
        "0",
        NAMESPACES,
    ),
    Fault(
        "prompt cache: the attention of the last token alone guides the pruner",
        "draftlens/models/prompt_reading.py",
        "1 if probe is None else READERS",
        "1",
        PROBED,
    ),
    Fault(
        "parts: a row that is read reads its last token again into its cache",
        "draftlens/models/prompt_reading.py",
        "        self._cache.truncate(ends)\n",
        "",
        IN_PARTS,
    ),
    Fault(
        "parts: the logits of a row that was read are taken again",
        "draftlens/models/prompt_reading.py",
        "if end == length and self._logits[row] is None:",
        "if end == length:",
        IN_PARTS,
    ),
    Fault(
        "parts: each begins with the probe's first tokens",
        "draftlens/models/prompt_reading.py",
        "self._probe.begin_part(starts, ends)",
        "self._probe.begin_part([0] * len(starts), ends)",
        IN_PARTS,
    ),
    Fault(
        "parts: the scores of a part are those of the last",
        "draftlens/models/attention/scores.py",
        "self.by_layer[self._num_added] += scores",
        "self.by_layer[self._num_added] = scores",
        IN_PARTS,
    ),
    Fault(
        "answers are stored at the positions after theirs",
        "draftlens/models/prompt_reading.py",
        "positions = next_position + torch.arange(",
        "positions = next_position + 1 + torch.arange(",
        STORED,
    ),
    Fault(
        "answers are stored without the prompts before them",
        "draftlens/models/held_tokens.py",
        "np.concatenate([self.digests, digests])",
        "digests",
        STORED,
    ),
    Fault(
        "answers are stored with the token that no pass has read",
        "draftlens/decoding/session.py",
        "count = self.cache.lengths[row] - self.prompt_lengths[row]",
        "count = self.cache.lengths[row] - self.prompt_lengths[row] + 1",
        STORED,
    ),
    Fault(
        "a row that moves is stored with another one's tokens",
        "draftlens/models/kv_cache.py",
        "replace_by_last(self.held, row)",
        "self.held.pop()",
        STORED,
    ),
    Fault(
        "a row that is read in parts is not stored",
        "draftlens/models/kv_cache.py",
        "        copy.held = list(rows.held)\n",
        "",
        STORED,
    ),
    Fault(
        "prompt lengths of rows that move are those of others",
        "draftlens/decoding/session.py",
        "replace_by_last(self.prompt_lengths, row)",
        "self.prompt_lengths.pop()",
        STORED,
    ),
    Fault(
        "parts: a row that joins has the cache of no row",
        "draftlens/decoding/session.py",
        "self.cache.join(cache if cache.shares(self.cache) else self.cache.copied(cache))",
        "self.cache.join(cache)",
        PARTS,
    ),
    Fault(
        "parts: rows are read into places of which others may leave",
        "draftlens/decoding/admission.py",
        "if batch is not None and not in_parts:",
        "if batch is not None:",
        PARTS,
    ),
    Fault(
        "parts: rows that run wait for the whole prompt",
        "draftlens/decoding/session.py",
        "            if rows is None:\n                break\n",
        "            if rows is None:\n                continue\n",
        PARTS,
    ),
    Fault(
        "parts: they stay small where no row runs",
        "draftlens/decoding/admission.py",
        "self._delay = delay\n",
        "self._delay = self._delay or delay\n",
        PARTS,
    ),
    Fault(
        "parts: another call is read before the rest",
        "draftlens/decoding/admission.py",
        "        if admitted is None:\n            self._reading = reading\n",
        "",
        PARTS,
    ),
    Fault(
        "rows that end leave in an order in which others take their places",
        "draftlens/decoding/session.py",
        "in sorted(rows, reverse=True):",
        "in sorted(rows):",
        LEAVING,
    ),
    Fault(
        "a row that moves has the position of the row that left",
        "draftlens/decoding/session.py",
        "without_row(self._next_position, row)",
        "self._next_position[..., :-1, :]",
        LEAVING,
    ),
    Fault(
        "the sequences of rows that leave stay in their order",
        "draftlens/decoding/session.py",
        "replace_by_last(self.sequences, row)",
        "del self.sequences[row]",
        LEAVING,
    ),
    Fault(
        "rows that the draft has not read leave it",
        "draftlens/decoding/session.py",
        "        if not self._unread:\n            self._drop_ended()",
        "        self._drop_ended()",
        UNREAD,
    ),
    Fault(
        "scheduler: all samples of a job are its first row",
        "draftlens/scheduling/batch.py",
        "(job, len(job.sequences))",
        "(job, 0)",
        SAMPLES,
    ),
    Fault(
        "scheduler: samples share their seed",
        "draftlens/scheduling/batch.py",
        "for seed in row_seeds(seeds[0], job.samples)]",
        "for seed in seeds[:1] * job.samples]",
        SAMPLES,
    ),
    Fault(
        "scheduler: a request gets the method of another one",
        "draftlens/scheduling/scheduler.py",
        "if batch.method == request.method:",
        "if True:",
        SCHEDULER,
    ),
    Fault(
        "scheduler: rows of a job that is cancelled stay in the batch",
        "draftlens/scheduling/batch.py",
        "                self.session.remove(sequence)\n        self.jobs",
        "                pass\n        self.jobs",
        CANCELLED,
    ),
    Fault(
        "scheduler: a job that is cancelled keeps its place",
        "draftlens/scheduling/batch.py",
        "            self.rows.pop(sequence.number, None)\n",
        "",
        CANCELLED,
    ),
    Fault(
        "scheduler: a job that waits cannot be cancelled",
        "draftlens/scheduling/scheduler.py",
        "        if job in self._waiting:\n            self._stop_waiting(job)\n        for",
        "        for",
        WAITING,
    ),
    Fault(
        "scheduler: a batch whose round failed goes on",
        "draftlens/scheduling/scheduler.py",
        "            self._batches.remove(batch)\n            for job in batch.jobs:",
        "            for job in batch.jobs:",
        FAILING,
    ),
    Fault(
        "scheduler: an error in a prompt leaves the job's first rows",
        "draftlens/scheduling/scheduler.py",
        "        for batch in list(self._batches):\n            self._leave(batch, job)\n        job.notify",
        "        job.notify",
        FAILING,
    ),
    Fault(
        "scheduler: a long job counts as the others",
        "draftlens/scheduling/scheduler.py",
        "longest = max(each.length for each in [*running, job])",
        "longest = job.length",
        ROOM,
    ),
    Fault(
        "scheduler: the client that came first goes first",
        "draftlens/scheduling/scheduler.py",
        "key=lambda head: (rows[head.client], self._turns[head.client])",
        "key=lambda head: 0",
        CLIENTS,
    ),
    Fault(
        "words: a row of pictures alone has no token",
        "draftlens/drafting/text_inputs.py",
        "if token not in of_media] or row[-1:] for row",
        "if token not in of_media] for row",
        WORDS,
    ),
    Fault(
        "words: pictures that cannot be told from words stay",
        "draftlens/drafting/text_inputs.py",
        "of_media = media_ids(config) | _placeholders(config)",
        "of_media = frozenset[int]()",
        WORDS,
    ),
    Fault(
        "words: pictures count in what the prompt costs the draft",
        "draftlens/drafting/draft_prompt.py",
        "max(length - num_visual, 1)",
        "max(length - 0 * num_visual, 1)",
        WORDS,
    ),
    Fault(
        "words: the draft's configuration names the pictures of the target",
        "draftlens/methods/parts.py",
        "TextPromptBuilder(draft, models.target.model.config)",
        "TextPromptBuilder(draft, draft.model.config)",
        LANGUAGE_DRAFT,
    ),
    Fault(
        "words: a draft that runs ahead is given the pictures",
        "draftlens/methods/parallelvlm/drafters.py",
        "OwnPrompt(pruning, drafter.prompts.readable)",
        "OwnPrompt(pruning)",
        LANGUAGE_AHEAD,
    ),
    Fault(
        "words: generate of transformers wants inputs of a draft that reads words",
        "draftlens/hf_generate/custom_generate.py",
        "self.draft_inputs is None and not reads_words:",
        "self.draft_inputs is None:",
        LANGUAGE_INSIDE,
    ),
    Fault(
        "retokenized: what the draft holds of another text stays",
        "draftlens/drafting/retokenized.py",
        "        self.rows.truncate(row, same)\n",
        "",
        RETOKENIZED_ROWS,
    ),
    Fault(
        "retokenized: a chain goes on after the draft's end",
        "draftlens/drafting/retokenized.py",
        "return bool(written) and written[-1] == self.retokenizer.draft_eos",
        "return False",
        RETOKENIZED_ROWS,
    ),
    Fault(
        "retokenized: positions count from the tokens that the target has",
        "draftlens/drafting/retokenized.py",
        "steps = [[len(self._held[row]) + len(ids)] for",
        "steps = [[len(ids)] for",
        RETOKENIZED_ROWS,
    ),
    Fault(
        "retokenized: the draft's text follows no word of the answer",
        "draftlens/models/retokenizer.py",
        "        if whole[: len(tokens)] == list(tokens):\n            return whole[len(tokens) :]\n",
        "",
        ("tests/unit/models/test_retokenizer.py",),
    ),
    Fault(
        "retokenized: a draft with another tokenizer prunes",
        "draftlens/methods/parts.py",
        "    if models.draft.retokenizer is not None:\n        raise",
        "    if False:\n        raise",
        RETOKENIZED,
    ),
    Fault(
        "a prompt that was read in parts counts as exact below float32",
        "draftlens/streaming.py",
        "is_low and (in_parts or call.session.drafter.max_nodes)",
        "is_low and call.session.drafter.max_nodes",
        _only("tests/e2e/test_embedded.py", "bfloat16"),
    ),
    Fault(
        "a row without visual tokens has no digests",
        "draftlens/models/token_digests.py",
        "    width = math.prod(values.shape[1:]) * values.element_size()\n",
        "    width = -1\n",
        ("tests/unit/models/test_token_digests.py",),
    ),
    Fault(
        "OpenVINO's plug-in is unloaded with the passes",
        "draftlens/compile/openvino_graph.py",
        "@cache\ndef core()",
        "def core()",
        _only("tests/exact/test_openvino.py", "freed"),
    ),
    Fault(
        "draft tokens stay on the device of the drafter",
        "draftlens/decoding/session.py",
        "tokens.to(self.target.device)",
        "tokens",
        ("tests/exact/test_fake_cuda.py",),
    ),
    Fault(
        "many rows are always multiplied by oneDNN",
        "draftlens/models/onednn_many_rows.py",
        "states, weight), by_mkl, by_onednn",
        "states, weight), by_onednn, by_onednn",
        ("tests/unit/models/test_many_rows.py",),
    ),
    Fault(
        "a text's query is one token longer",
        "draftlens/prefill/spava/rows.py",
        "max(length - division.query_tokens, 0)",
        "max(length - division.query_tokens - 1, 0)",
        ("tests/unit/prefill/spava/test_rows.py",),
    ),
    Fault(
        "retokenized: an end beyond the target's vocabulary is proposed",
        "draftlens/drafting/retokenized.py",
        "takewhile(self.vocab_size.__gt__, ids)",
        "ids",
        RETOKENIZED_ROWS,
    ),
    Fault(
        "products of the vision tower are not watched for",
        "draftlens/models/products.py",
        "self._many_rows(_num_patches(inputs), self._num_other_weights)",
        "nullcontext()",
        ("tests/unit/models/test_many_rows.py",),
    ),
    Fault(
        "OpenVINO: tokens of a prompt attend to later ones",
        "draftlens/compile/openvino_passes.py",
        "torch.ones(width, width, dtype=torch.bool).tril()",
        "torch.ones(width, width, dtype=torch.bool)",
        READ_BY_OPENVINO,
    ),
    Fault(
        "OpenVINO: logits of all rows follow tokens of the first one",
        "draftlens/compile/openvino_passes.py",
        "(last - start + (end - start) * torch.arange(rows)[:, None])[is_here]",
        "(last - start + 0 * torch.arange(rows)[:, None])[is_here]",
        READ_BY_OPENVINO,
    ),
    Fault(
        "OpenVINO: each part of a prompt is written to the first slots",
        "draftlens/compile/openvino_passes.py",
        "cache.lengths = [cached + end - start for cached in cache.lengths]",
        "cache.lengths = list(cache.lengths)",
        READ_BY_OPENVINO,
    ),
    Fault(
        "OpenVINO: features between layers are left out of a prompt",
        "draftlens/models/adapter.py",
        "if attention is not None or not part.is_plain or",
        "if attention is not None or",
        READ_BY_OPENVINO,
    ),
)
