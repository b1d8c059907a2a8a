//! Blocks wanted and blocks had, to ordered steps and the ranges to ask for. A pure function: no
//! I/O, clock, threads, randomness; the same input gives the same plan.
//!
//! A *step* makes one block of the target, in payload order. A *span* is one request's worth of
//! bundle bytes. Stored blocks lie in the bundle in payload order, so spans ascend too.
//!
//! ```text
//!   stored blocks   [A][B][C][D][E][F][G]      had: C, F
//!   runs            [A][B]   [D][E]   [G]      what is missing, contiguous
//!   spans           [A][B] c [D][E]   [G]      a small gap (C) is read through,
//!                                              a run longer than max_span is split at blocks
//! ```
//!
//! *Gaps.* Reading through a gap costs its bytes and saves a request: its head both ways, about
//! half a KiB, and a share of a round trip. A gap no larger than [`FREE_GAP`] is always read
//! through; larger ones, smallest first, up to [`MAX_GAP`] each and a fixed small share of all
//! missing bytes together ([`GAP_SHARE`]), so that an update never costs noticeably more traffic
//! than it must.
//!
//! *In place.* The target's own old content is gone as far as it is written over. What will be left
//! of it when a block is needed is played through with the sizes of all blocks before it
//! ([`Survival`]). Sizes of blocks that are still to be fetched may only be bounded: then they are
//! estimated, by the room that the old content had between what stands before and behind them, and
//! the writer has the last word.

use std::ops::Range;

use crate::bundle::{Block, Index, Size};
use crate::old::{Old, Survival};
use crate::seed::{Have, Place};

/// Gaps up to here cost no more than the request they save.
pub const FREE_GAP: u64 = 512;

/// Larger gaps are never read through.
pub const MAX_GAP: u64 = 64 << 10;

/// All gaps above [`FREE_GAP`] together are at most the missing bytes divided by this.
pub const GAP_SHARE: u64 = 100;

/// Most spans for data without an index.
const MAX_WHOLE_SPANS: u64 = 1 << 16;

/// How to build spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Longest span in bytes, unless it is a single block.
    pub max_span: u64,
    /// Merge neighbours and small gaps; else each block is a span of its own.
    pub merge: bool,
    /// Read through gaps at all.
    pub gaps: bool,
}

/// What makes one block of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read it from a seed, check it, fetch it if it is not there.
    Seed(Place),
    /// Take it from the target's old content: leave it where it stands, or move it; it has so many
    /// bytes. Fetch it if it is not there any more.
    Old(u32),
    /// Repeat an earlier block of the payload, by its number.
    Copy(u32),
    /// Cut it out of a span, by the span's number.
    Fetch(u32),
}

/// What to do for one payload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Number of the first block that `steps` is about; later ones follow in order.
    pub from: u32,
    /// One step a block.
    pub steps: Vec<Step>,
    /// The ranges to ask for, ascending and disjoint.
    pub spans: Vec<Range<u64>>,
    /// For each span, the number of its first block.
    pub span_starts: Vec<u32>,
    /// Blocks to fetch.
    pub fetched: u64,
    /// Stored bytes of the blocks to fetch.
    pub missing: u64,
    /// Least number of ranges that hold all missing bytes and no other.
    pub runs: u64,
    /// Blocks expected to stand at their place in the target.
    pub kept: u64,
    /// Their plain bytes.
    pub bytes_kept: u64,
    /// Blocks to read from seeds, or from elsewhere in the target's old content.
    pub seeded: u64,
    /// Their plain bytes.
    pub bytes_seeded: u64,
    /// Blocks that repeat earlier ones, and do not stand at their place.
    pub copied: u64,
    /// Bytes read through in gaps.
    pub gaps: u64,
    /// Least plain size of all blocks of the plan: exact where sizes are known, also from seeds.
    pub least_size: u64,
}

impl Plan {
    /// Fetches data that have no index, whole. There are no blocks, and no steps.
    pub fn whole(data: &Range<u64>, shape: &Shape) -> Self {
        // The length is not covered by a digest: it must not choose the number of spans.
        let max_span = shape
            .max_span
            .max((data.end - data.start) / MAX_WHOLE_SPANS)
            .max(1);
        let starts = std::iter::successors(Some(data.start), |at| at.checked_add(max_span));
        Self {
            spans: starts
                .take_while(|start| *start < data.end)
                .map(|start| start..data.end.min(start.saturating_add(max_span)))
                .collect(),
            missing: data.end - data.start,
            runs: 1,
            ..Self::default()
        }
    }

    /// Blocks that come from the target's old content, moved or not.
    pub fn reused(&self) -> u64 {
        let moved = self
            .steps
            .iter()
            .filter(|step| matches!(step, Step::Old(_)));
        self.kept.max(moved.count() as u64)
    }

    /// Counts a block that is made of what is there, but does not stand at its place.
    fn count(&mut self, step: Step) {
        match step {
            Step::Seed(Place { size, .. }) | Step::Old(size) => {
                self.seeded += 1;
                self.bytes_seeded += u64::from(size);
            }
            Step::Copy(_) => self.copied += 1,
            Step::Fetch(_) => {}
        }
    }

    /// Bytes of all spans.
    pub fn bytes(&self) -> u64 {
        self.missing + self.gaps
    }

    /// Bytes of the spans from an offset in the bundle on: what is before it is at hand.
    pub fn bytes_behind(&self, offset: u64) -> u64 {
        let behind = |span: &Range<u64>| span.end.saturating_sub(span.start.max(offset));
        self.spans.iter().map(behind).sum()
    }
}

/// How far an install is, and what is left of the target's old content.
#[derive(Clone, Copy, Debug)]
pub struct Standing<'a> {
    /// What stood on the target.
    pub old: &'a Old,
    /// What of it is there still.
    pub survival: &'a Survival,
    /// Where each block made so far begins, and where the next one goes: one more than blocks.
    pub offsets: &'a [u64],
    /// How often a plan turned out wrong about the old content.
    pub wrong: u32,
}

impl<'a> Standing<'a> {
    /// Nothing is made yet.
    pub fn start(old: &'a Old, survival: &'a Survival) -> Self {
        Self {
            old,
            survival,
            offsets: &[0],
            wrong: 0,
        }
    }

    /// The survival to play through. A plan that has to guess, or whose like was wrong before,
    /// leaves room for error.
    fn played(&self, exact: bool) -> Survival {
        let shift = if exact { 0 } else { 1 + self.wrong };
        let budget = self.survival.budget().checked_shr(shift).unwrap_or(0);
        self.survival.with_budget(budget)
    }
}

/// Plans of one payload that may be wrong about the old content, before it is left out of them.
const MAX_WRONG: u32 = 4;

/// Plans the blocks behind those that are made.
pub fn plan(index: &Index, have: &Have, standing: &Standing<'_>, shape: &Shape) -> Plan {
    let made = standing.offsets.len().saturating_sub(1);
    let from = u32::try_from(made).unwrap_or(u32::MAX);
    let mut plan = Plan {
        from,
        ..Plan::default()
    };
    let mut wanted: Vec<Range<u64>> = Vec::new();
    let Standing { old, .. } = *standing;
    let guesses = Guesses::new(index, have, standing, from);
    let mut survival = standing.played(guesses.exact);
    let mut position = standing.offsets.last().copied().unwrap_or(0);
    let usable = |number: u32| standing.wrong < MAX_WRONG && !have.has(number);
    for (block, size) in (from..)
        .map_while(|number| index.block(number))
        .zip(&guesses.sizes)
    {
        let number = block.number;
        let left = usable(number) && block.first == number && survival.has(old, number);
        let size_there = old.last_place(number).map(|found| found.size);
        let step = match size_there.filter(|size| left && block.size.allows(*size as usize)) {
            Some(size) => Step::Old(size),
            None => step(&block, have),
        };
        if let (Step::Fetch(_), Some(stored)) = (step, block.stored()) {
            wanted.push(stored);
        } else if let Some(size) = old.stands_at(block.first, position) {
            plan.kept += 1;
            plan.bytes_kept += u64::from(size);
        } else {
            plan.count(step);
        }
        plan.steps.push(step);
        survival.release(number);
        position += u64::from(*size);
        survival.advance(
            old,
            position,
            |block| block > number && usable(block),
            |_| true,
        );
    }
    plan.least_size = least_size(index, from, &plan.steps);
    plan.fetched = wanted.len() as u64;
    plan.missing = wanted.iter().map(|range| range.end - range.start).sum();
    plan.runs = runs(&wanted).count() as u64;
    plan.spans = spans(&wanted, plan.missing, shape);
    plan.gaps = plan.spans.iter().map(|s| s.end - s.start).sum::<u64>() - plan.missing;

    // Both lists ascend, so each block's span is found by going along.
    let mut span = 0;
    let mut blocks = wanted.iter();
    for (block_number, step) in (from..).zip(&mut plan.steps) {
        let Step::Fetch(number) = step else { continue };
        let Some(block) = blocks.next() else { break };
        while plan.spans.get(span).is_some_and(|s| s.end < block.end) {
            span += 1;
        }
        if plan.span_starts.len() == span {
            plan.span_starts.push(block_number);
        }
        // Spans are no more than blocks, whose numbers are u32.
        *number = u32::try_from(span).unwrap_or(u32::MAX);
    }
    plan
}

/// The sizes of the blocks to come, as far as they are known, and guesses for the others.
struct Guesses {
    sizes: Vec<u32>,
    /// All are known.
    exact: bool,
}

impl Guesses {
    fn new(index: &Index, have: &Have, standing: &Standing<'_>, from: u32) -> Self {
        let Standing { old, offsets, .. } = *standing;
        if old.is_empty() {
            // Nobody asks for them.
            return Self {
                sizes: vec![0; index.len().saturating_sub(from as usize)],
                exact: true,
            };
        }
        let known = |block: &Block| {
            let made = offsets.get(block.first as usize..).unwrap_or_default();
            match (block.size, made) {
                (Size::Exact(size), _) => Some(size),
                (_, [start, end, ..]) => u32::try_from(end - start).ok(),
                _ => match have.place(block.first) {
                    Some(place) => Some(place.size),
                    None => old.last_place(block.first).map(|found| found.size),
                },
            }
        };
        let max = u64::from(index.chunker().max_size());
        let mut sizes: Vec<u32> = Vec::with_capacity(index.len().saturating_sub(from as usize));
        let mut exact = true;
        // Where the old content goes on if it is as the new one.
        let mut at = offsets.last().copied().unwrap_or(0);
        // Blocks of unknown size since the last known one: guesses without a look at the room.
        let mut unknown = 0;
        let mut blocks = (from..).map_while(|number| index.block(number)).peekable();
        while let Some(block) = blocks.next() {
            let Some(size) = known(&block) else {
                exact = false;
                unknown += 1;
                // What repeats at once is a long run of one byte: blocks of the largest size.
                let run = blocks.peek().is_some_and(|next| next.first == block.first);
                let guess = if run || block.first != block.number {
                    max
                } else {
                    max / 4
                };
                sizes.push(u32::try_from(guess).unwrap_or(u32::MAX));
                continue;
            };
            if let Some(place) = old.next_place(block.first, at) {
                let room = place.offset - at;
                if unknown > 0 && (unknown..=unknown * max).contains(&room) {
                    let first = sizes.len() - usize::try_from(unknown).unwrap_or(0);
                    let run = sizes.get_mut(first..).unwrap_or_default();
                    share_out(run, room);
                }
                at = place.offset + u64::from(place.size);
            } else if let Some(place) = old.last_place(block.first) {
                at = place.offset + u64::from(place.size);
            }
            unknown = 0;
            sizes.push(size);
        }
        Self { sizes, exact }
    }
}

/// Gives a run of blocks sizes that add up to the room for them.
fn share_out(run: &mut [u32], room: u64) {
    let mut left = room;
    let mut blocks = run.len() as u64;
    for size in run {
        let share = left / blocks.max(1);
        *size = u32::try_from(share).unwrap_or(u32::MAX);
        left -= share;
        blocks -= 1;
    }
}

fn least_size(index: &Index, from: u32, steps: &[Step]) -> u64 {
    let known = |number: u32, step: &Step| match step {
        Step::Old(size) => u64::from(*size),
        Step::Seed(place) => u64::from(place.size),
        Step::Copy(_) | Step::Fetch(_) => match index.block(number).map(|block| block.size) {
            Some(Size::Exact(size)) => u64::from(size),
            _ => 1,
        },
    };
    let at = |number: u32| steps.get(number.checked_sub(from)? as usize);
    let size = |(number, step): (u32, &Step)| match step {
        // As large as the block that it repeats.
        Step::Copy(first) => known(number, at(*first).unwrap_or(step)),
        _ => known(number, step),
    };
    (from..).zip(steps).map(size).sum()
}

fn step(block: &Block, have: &Have) -> Step {
    if block.first != block.number {
        // Made once, a block is at hand for every repeat, whether or not it is stored again.
        Step::Copy(block.first)
    } else if let Some(place) = have
        .place(block.number)
        .filter(|p| block.size.allows(p.size as usize))
    {
        Step::Seed(place)
    } else {
        Step::Fetch(0)
    }
}

/// Neighbours joined.
fn runs(wanted: &[Range<u64>]) -> impl Iterator<Item = Range<u64>> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let mut run = wanted.get(at)?.clone();
        at += 1;
        while let Some(next) = wanted.get(at).filter(|next| next.start == run.end) {
            run.end = next.end;
            at += 1;
        }
        Some(run)
    })
}

fn spans(wanted: &[Range<u64>], missing: u64, shape: &Shape) -> Vec<Range<u64>> {
    if !shape.merge {
        return wanted.to_vec();
    }
    let max_gap = if shape.gaps {
        widest_gap(wanted, missing / GAP_SHARE)
    } else {
        0
    };
    let mut spans: Vec<Range<u64>> = Vec::new();
    let mut blocks = wanted;
    while !blocks.is_empty() {
        // A stretch: blocks no two of which are further apart than the widest gap.
        let apart = |pair: &[Range<u64>]| matches!(pair, [a, b] if b.start - a.end > max_gap);
        let len = blocks
            .windows(2)
            .position(apart)
            .map_or(blocks.len(), |at| at + 1);
        let (stretch, rest) = blocks.split_at(len);
        split(stretch, shape.max_span, &mut spans);
        blocks = rest;
    }
    spans
}

/// The widest gap to read through such that all of them together stay within `budget`.
fn widest_gap(wanted: &[Range<u64>], budget: u64) -> u64 {
    let mut gaps: Vec<u64> = wanted
        .windows(2)
        .filter_map(|pair| match pair {
            [a, b] => Some(b.start - a.end),
            _ => None,
        })
        .filter(|gap| (FREE_GAP + 1..=MAX_GAP).contains(gap))
        .collect();
    gaps.sort_unstable();
    let mut widest = FREE_GAP;
    let mut spent = 0;
    for same in gaps.chunk_by(|a, b| a == b) {
        spent += same.iter().sum::<u64>();
        if spent > budget {
            break;
        }
        widest = same.first().copied().unwrap_or(widest);
    }
    widest
}

/// Cuts a stretch at blocks into spans of about equal size, none above `max_span` unless it is one
/// block.
fn split(stretch: &[Range<u64>], max_span: u64, spans: &mut Vec<Range<u64>>) {
    let (Some(first), Some(last)) = (stretch.first(), stretch.last()) else {
        return;
    };
    let size = last.end - first.start;
    let target = size.div_ceil(size.div_ceil(max_span.max(1)));
    let mut span = first.clone();
    for block in stretch.iter().skip(1) {
        let full = span.end - span.start >= target || block.end - span.start > max_span;
        if full {
            // A gap at the cut is not read.
            spans.push(span);
            span = block.clone();
        } else {
            span.end = block.end;
        }
    }
    spans.push(span);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::{Compression, Encoding};
    use crate::chunker::Chunker;
    use crate::hash::HashAlgorithm;
    use crate::scan::Found;

    const SHAPE: Shape = Shape {
        max_span: 1 << 20,
        merge: true,
        gaps: true,
    };

    /// An index of blocks given by their content number and stored size.
    fn index(blocks: &[(u32, u32)], deduplicated: bool, start: u64) -> Index {
        let algorithm = HashAlgorithm::Sha256;
        let mut seen = std::collections::HashSet::new();
        let mut sizes = Vec::new();
        let mut at = start;
        for (content, size) in blocks {
            if seen.insert(*content) || !deduplicated {
                sizes.extend(size.to_be_bytes());
                at += u64::from(*size);
            }
        }
        let encoding = Encoding {
            chunker: Chunker::parse("casync-1024").expect("a chunker"),
            algorithm,
            deduplicated,
            compression: Compression::None,
            digests: blocks
                .iter()
                .flat_map(|(content, _)| {
                    algorithm.digest(&content.to_be_bytes()).as_bytes().to_vec()
                })
                .collect(),
            sizes: Some(sizes),
        };
        Index::new(encoding, start..at, 0).expect("consistent")
    }

    /// A plan for a target without old content, once the blocks before `from` are made.
    fn after(index: &Index, have: &Have, from: u32, shape: &Shape) -> Plan {
        let standing = Standing {
            old: &Old::default(),
            survival: &Survival::new(0),
            offsets: &vec![0; from as usize + 1],
            wrong: 0,
        };
        plan(index, have, &standing, shape)
    }

    fn anew(index: &Index, have: &Have, shape: &Shape) -> Plan {
        after(index, have, 0, shape)
    }

    fn have(index: &Index, numbers: &[u32]) -> Have {
        let mut have = Have::nothing(index);
        for number in numbers {
            have.add(
                *number,
                Place {
                    seed: 0,
                    offset: 7,
                    size: index.block(*number).expect("there").size.bound(),
                },
            );
        }
        have
    }

    #[test]
    fn merges_neighbours_and_small_gaps() {
        let blocks: Vec<_> = [90_000, 10_000, 400, 50_000, 70_000, 20_000, 10]
            .iter()
            .enumerate()
            .map(|(i, size)| (u32::try_from(i).expect("small"), *size))
            .collect();
        let index = index(&blocks, true, 1000);
        let plan = anew(&index, &have(&index, &[2, 4]), &SHAPE);
        // Block 2 is a free gap, block 4 too wide.
        assert_eq!(plan.spans, [1000..151_400, 221_400..241_410]);
        assert_eq!((plan.fetched, plan.runs, plan.gaps), (5, 3, 400));
        assert_eq!(plan.steps[1], Step::Fetch(0));
        assert_eq!(plan.steps[6], Step::Fetch(1));
        assert!(matches!(plan.steps[2], Step::Seed(_)));
    }

    #[test]
    fn without_merging_each_block_is_a_request() {
        let index = index(&[(0, 10), (1, 20), (0, 10), (2, 30)], true, 5);
        let shape = Shape {
            merge: false,
            ..SHAPE
        };
        let plan = anew(&index, &Have::nothing(&index), &shape);
        assert_eq!(plan.spans, [5..15, 15..35, 35..65]);
        assert_eq!(plan.steps[2], Step::Copy(0));
    }

    #[test]
    fn a_long_run_is_shared_out_evenly() {
        let blocks: Vec<_> = (0..100).map(|i| (i, 10_000)).collect();
        let index = index(&blocks, true, 0);
        let shape = Shape {
            max_span: 300_000,
            ..SHAPE
        };
        let plan = anew(&index, &Have::nothing(&index), &shape);
        assert_eq!(plan.runs, 1);
        let sizes: Vec<_> = plan.spans.iter().map(|s| s.end - s.start).collect();
        assert_eq!(sizes, [250_000; 4]);
    }

    #[test]
    fn data_without_index_are_cut_into_spans() {
        let shape = Shape {
            max_span: 10,
            ..SHAPE
        };
        let plan = Plan::whole(&(5..27), &shape);
        assert_eq!(plan.spans, [5..15, 15..25, 25..27]);
        assert_eq!(plan.bytes(), 22);
        assert!(Plan::whole(&(5..5), &shape).spans.is_empty());
    }

    #[test]
    fn nothing_to_fetch_is_no_span() {
        let index = index(&[(0, 10)], true, 0);
        let plan = anew(&index, &have(&index, &[0]), &SHAPE);
        assert!(plan.spans.is_empty() && plan.bytes() == 0);
        assert_eq!(after(&index, &Have::nothing(&index), 1, &SHAPE).steps, []);
    }

    #[test]
    fn a_place_of_impossible_size_is_not_used() {
        let index = index(&[(0, 10)], true, 0);
        let mut have = Have::nothing(&index);
        have.add(
            0,
            Place {
                seed: 0,
                offset: 0,
                size: 11,
            },
        );
        assert_eq!(anew(&index, &have, &SHAPE).steps, [Step::Fetch(0)]);
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, n: u64) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (self.0 >> 33) % n
        }
    }

    /// What must hold of every plan, over many random layouts.
    #[test]
    fn every_plan_keeps_its_promises() {
        for seed in 0..3000 {
            let mut random = Random(seed);
            let count = random.below(60);
            let contents = 1 + random.below(80);
            let widest = [300, 3000, 60_000][usize::try_from(random.below(3)).expect("small")];
            let mut size_of = std::collections::HashMap::new();
            let blocks: Vec<(u32, u32)> = (0..count)
                .map(|_| {
                    let content = u32::try_from(random.below(contents)).expect("small");
                    let size = u32::try_from(1 + random.below(widest)).expect("small");
                    (content, *size_of.entry(content).or_insert(size))
                })
                .collect();
            let index = index(&blocks, random.below(2) == 0, random.below(1 << 40));
            let share = random.below(5);
            let had: Vec<u32> = (0..u32::try_from(count).expect("small"))
                .filter(|_| random.below(4) < share)
                .collect();
            let have = have(&index, &had);
            let shape = Shape {
                max_span: 1 + random.below(200_000),
                merge: random.below(5) > 0,
                gaps: random.below(4) > 0,
            };
            let from = u32::try_from(random.below(count + 1)).expect("small");
            let plan = after(&index, &have, from, &shape);
            assert_eq!(plan, after(&index, &have, from, &shape), "seed {seed}");
            check(&plan, &index, &have, from, &shape, seed);
        }
    }

    /// Where all sizes are known, the writer finds each block of the old content that the plan
    /// counts on, within the budget; and the plan asks for nothing that would still have been there.
    #[test]
    fn a_plan_with_known_sizes_is_right_about_the_old_content() {
        let (mut moved, mut fetched) = (0, 0);
        for seed in 0..3000 {
            let mut random = Random(seed);
            let count = 1 + random.below(60);
            let contents = 1 + random.below(80);
            let size_of = |content: u64| u32::try_from(1 + content * 37 % 900).expect("small");
            let mut blocks = |count: u64| -> Vec<(u32, u32)> {
                let contents = (0..count).map(|_| random.below(contents));
                contents
                    .map(|content| (u32::try_from(content).expect("small"), size_of(content)))
                    .collect()
            };
            let (new, old) = (blocks(count), blocks(count));
            let index = index(&new, true, 0);
            let algorithm = HashAlgorithm::Sha256;
            let mut at = random.below(3) * 500;
            let found = old.iter().filter_map(|(content, size)| {
                let offset = at;
                at += u64::from(*size) + random.below(2) * 10;
                let kept = index.find(&algorithm.digest(&content.to_be_bytes()))?;
                Some(Found {
                    offset,
                    size: *size,
                    kept,
                })
            });
            let old = Old::new(found.collect());
            let budget = random.below(4) * 2000;
            let start = Survival::new(budget);
            let have = Have::nothing(&index);
            let plan = plan(&index, &have, &Standing::start(&old, &start), &SHAPE);
            // As the writer does it.
            let mut survival = start;
            let mut position = 0;
            let mut saved = 0;
            for (block, step) in index.blocks().zip(&plan.steps) {
                let there = block.first == block.number && survival.has(&old, block.number);
                match step {
                    Step::Old(size) => {
                        assert!(there, "seed {seed}: block {} is gone", block.number);
                        assert!(block.size == Size::Exact(*size));
                        moved += 1;
                    }
                    Step::Fetch(_) => {
                        assert!(!there, "seed {seed}: block {} is there", block.number);
                        fetched += 1;
                    }
                    _ => {}
                }
                survival.release(block.number);
                position += u64::from(block.size.bound());
                let is_old = |number: u32| matches!(plan.steps[number as usize], Step::Old(_));
                survival.advance(
                    &old,
                    position,
                    |number| number > block.number && is_old(number),
                    |place| {
                        saved += u64::from(place.size);
                        true
                    },
                );
            }
            assert!(budget > 0 || saved == 0, "seed {seed}");
        }
        assert!(moved > 10_000 && fetched > 10_000, "{moved} {fetched}");
    }

    fn check(plan: &Plan, index: &Index, have: &Have, from: u32, shape: &Shape, seed: u64) {
        // One step a block, in order.
        assert_eq!(
            plan.steps.len() as u64,
            index.len() as u64 - u64::from(from),
            "seed {seed}"
        );
        let mut used = vec![0u32; plan.spans.len()];
        let mut missing = 0;
        for (number, step) in (from..).zip(&plan.steps) {
            let block = index.block(number).expect("there");
            match step {
                Step::Old(_) => panic!("seed {seed}: there is no old content"),
                Step::Copy(first) => assert!(*first < number && block.first == *first),
                Step::Seed(place) => assert_eq!(have.place(number), Some(*place)),
                Step::Fetch(span) => {
                    assert!(block.first == number && have.place(number).is_none());
                    let stored = block.stored().expect("stored");
                    let inside = plan
                        .spans
                        .iter()
                        .filter(|s| s.start <= stored.start && stored.end <= s.end);
                    assert_eq!(inside.count(), 1, "seed {seed}");
                    let span = *span as usize;
                    assert!(plan.spans[span].start <= stored.start);
                    assert!(stored.end <= plan.spans[span].end);
                    used[span] += 1;
                    missing += stored.end - stored.start;
                }
            }
        }
        assert_eq!(plan.missing, missing, "seed {seed}");
        assert_eq!(
            plan.fetched,
            used.iter().map(|n| u64::from(*n)).sum::<u64>()
        );
        assert_eq!(plan.span_starts.len(), plan.spans.len(), "seed {seed}");
        for (number, first) in plan.span_starts.iter().enumerate() {
            let start = index.block(*first).expect("there").stored_at;
            assert_eq!(start, plan.spans[number].start, "seed {seed}");
        }
        // Spans ascend, do not overlap, are all used, and obey their limits.
        assert!(
            plan.spans
                .windows(2)
                .all(|pair| pair[0].end <= pair[1].start),
            "seed {seed}"
        );
        for (span, used) in plan.spans.iter().zip(&used) {
            assert!(*used > 0, "seed {seed}: a span without blocks");
            let size = span.end - span.start;
            assert!(shape.merge || *used == 1);
            assert!(
                !shape.merge || *used == 1 || size <= shape.max_span,
                "seed {seed}"
            );
        }
        let gap_limit = if shape.merge && shape.gaps {
            missing / GAP_SHARE + FREE_GAP * plan.fetched
        } else {
            0
        };
        assert!(
            plan.gaps <= gap_limit,
            "seed {seed}: {} > {gap_limit}",
            plan.gaps
        );
        assert_eq!(
            plan.bytes(),
            plan.spans.iter().map(|s| s.end - s.start).sum::<u64>()
        );
        assert!(plan.runs <= plan.fetched && (plan.runs > 0) == (plan.fetched > 0));
    }
}
