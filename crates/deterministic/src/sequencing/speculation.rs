//! Speculation: which batches may be executed before it is known what of them aborts (docs/protocols/qstore.md, section 4.8).
//!
//! The choice is made batch by batch and stands in the log, so every replica makes the same one.

use ordain_model::{Batch, Cascade, Choice, Chunk, Execution, Layout, Micros, Txn};

/// The number of batches at the beginning of either way that are not timed: they are executed while some of the other
/// kind still are.
const SETTLE: u32 = 8;
/// After so many timed ones it is enough of a try if what is seen is clear: the other way is slower by [`LOSS`], or faster by
/// [`SURE`].
const ENOUGH: u32 = 6;
const LOSS: f64 = 1.3;
const SURE: f64 = 1.5;
/// The batches of the shortest try; and of the first way before the first try.
const LOOK: u32 = SETTLE + ENOUGH;
/// The batches of the longest try, of ways that are near each other.
const TRY: u32 = 32;
/// The batches of the way in use that are timed before a try; up to twice as many.
const TIMED: u32 = 24;
/// The factor by which the other way must be faster: measurements are noisy, and a change has its price.
const GAIN: f64 = 1.05;
/// The number of batches after which a way that won narrowly is doubted.
const SOON: u32 = 32;
/// The number of batches between tries, as a multiple of what a try has cost: a try costs no more than such a part of
/// the time. After a try that was of no use the number grows, up to the most.
const SHARE: f64 = 64.0;
const RARER: u32 = 4;
const MOST: u32 = 4096;
/// The most that the number grows after a try that lost, but not clearly: a way that is much faster may have looked
/// slow while the other's remains were still executed.
const UNCLEAR: u32 = 8;
/// The time at the beginning of a load, when memory and caches are cold, whose findings are not trusted for longer.
const COLD: Micros = Micros::from_millis(250);
const MOST_COLD: u32 = 512;

/// The sequencer's measurements of how speculation pays.
///
/// It depends on who waits for what, on how far away that is and on how much has to be undone: so it is tried
/// (decision 26; docs/protocols/qstore.md, section 4.8, would compute it from how much aborts).
#[derive(Clone, Debug)]
pub(crate) struct Speculation {
    execution: Execution,
    cascade: Cascade,
    /// The way that was found to be the faster one speculates.
    is_better: bool,
    /// The transactions a microsecond when it was timed last.
    rate: f64,
    /// The number of batches that it has before the other way is tried.
    between: u32,
    /// The number of batches that it had until a try after which the way was changed, as long as that was the last
    /// try: it may have been faster by chance.
    doubted: Option<u32>,
    /// The other way is tried.
    is_trial: bool,
    /// The times at which the first and the last batch that count were closed.
    began: Option<Micros>,
    last: Micros,
    /// Batches so far, in this way; those of them that are timed last, and those that were before.
    all: Timed,
    timed: Timed,
    before: Timed,
}

/// Batches that are timed.
#[derive(Clone, Copy, Debug, Default)]
struct Timed {
    batches: u32,
    txns: u64,
    /// The time that all took, and that of the longest.
    took: Micros,
    longest: Micros,
}

impl Timed {
    fn took(&mut self, time: Micros) {
        self.took = self.took.plus(time);
        self.longest = self.longest.max(time);
    }

    fn count(&mut self, txns: u32) {
        self.batches += 1;
        self.txns += u64::from(txns);
    }

    /// Transactions and microseconds without the batch that took longest. One pause tells nothing of the way that it
    /// came in: the machine was used by others, or there was no load.
    fn usual(&self) -> (f64, f64) {
        let counted = f64::from(self.batches.saturating_sub(1)) / f64::from(self.batches.max(1));
        (self.txns as f64 * counted, self.took.since(self.longest).0 as f64)
    }
}

impl Speculation {
    pub(crate) fn new(execution: Execution, cascade: Cascade) -> Speculation {
        Speculation {
            execution,
            cascade,
            is_better: execution == Execution::Speculative,
            rate: 0.0,
            between: LOOK,
            doubted: None,
            is_trial: false,
            began: None,
            last: Micros(0),
            all: Timed::default(),
            timed: Timed::default(),
            before: Timed::default(),
        }
    }

    /// Chooses for a batch that is closed now how its epoch is executed. There is only a choice if a transaction would
    /// have to wait for a verdict. `Wait` needs no choice, as all wait without one.
    pub(crate) fn choose(&mut self, now: Micros, batch: &Batch, layout: &Layout) -> Option<Choice> {
        if self.execution == Execution::Conservative {
            return None;
        }
        let waits = |(_, chunk, txn): (_, &std::sync::Arc<Chunk>, &Txn)| {
            txn.logged && txn.abortable && !txn.table && crosses(chunk, txn, layout)
        };
        if !batch.txns().any(waits) {
            return None;
        }
        if self.execution == Execution::Auto {
            self.count(now, batch.total);
        }
        let speculates = self.is_better != self.is_trial;
        Some(if speculates { Choice::Speculate(self.cascade) } else { Choice::Wait })
    }

    /// Counts a batch. As many at a time are closed as are executed, as soon as there are more than can be.
    fn count(&mut self, now: Micros, txns: u32) {
        let began = *self.began.get_or_insert(now);
        let time = if self.all.batches == 0 { Micros(0) } else { now.since(self.last) };
        self.all.took(time);
        self.timed.took(time);
        if self.is_over() {
            match self.is_trial {
                true => self.judge(now.since(began) < COLD),
                false => self.rate = self.rate(),
            }
            self.is_trial = !self.is_trial;
            self.all = Timed::default();
        }
        if self.all.batches <= SETTLE {
            (self.timed, self.before) = Default::default();
        } else if !self.is_trial && self.timed.batches == TIMED {
            self.before = std::mem::take(&mut self.timed);
        }
        self.all.count(txns);
        self.timed.count(txns);
        self.last = now;
    }

    /// Tells whether the present way has had its batches.
    fn is_over(&self) -> bool {
        if !self.is_trial {
            return self.all.batches >= self.between;
        }
        let rate = self.rate();
        let is_clear = rate * LOSS < self.rate || rate > self.rate * SURE;
        self.all.batches == TRY || self.all.batches >= LOOK && is_clear
    }

    /// The transactions a microsecond of late, in the present way.
    fn rate(&self) -> f64 {
        let ((before, took_before), (timed, took)) = (self.before.usual(), self.timed.usual());
        (before + timed) / (took_before + took).max(1.0)
    }

    /// The other way was tried.
    fn judge(&mut self, is_cold: bool) {
        let most = if is_cold { MOST_COLD } else { MOST };
        let affordable = |lost: f64| ((lost * SHARE) as u32).min(most);
        let ratio = self.rate() / self.rate;
        let is_faster = ratio > GAIN;
        // A way that was faster by chance, or of no use, is not tried again before this.
        let in_vain = |between: u32| (RARER * between).min(most);
        (self.between, self.doubted) = if is_faster {
            let is_sure = ratio >= SURE;
            // The least cost of trying the other way.
            let sure = if is_sure { affordable(f64::from(LOOK) * (ratio - 1.0)) } else { 0 };
            let doubted = self.doubted.take();
            let between = sure.max(doubted.map_or(SOON, in_vain));
            (between, (doubted.is_none() && !is_sure).then_some(self.between))
        } else {
            // The batches lost by the try, changing to and fro included.
            let (txns, took) = self.all.usual();
            let lost = f64::from(self.all.batches) * (self.rate * took / txns - 1.0).max(0.0);
            let trusted = if ratio * LOSS < 1.0 { MOST } else { UNCLEAR * self.between };
            (affordable(lost).max(in_vain(self.between)).min(trusted), None)
        };
        self.is_better ^= is_faster;
    }
}

/// Tells whether several shards take part.
fn crosses(chunk: &Chunk, txn: &Txn, layout: &Layout) -> bool {
    let mut shards = chunk.fragments(txn).iter().map(|fragment| layout.shard_of(fragment.hash.slot()));
    let first = shards.next();
    shards.any(|shard| Some(shard) != first)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use ordain_model::args::encode;
    use ordain_model::{Abort, Access, Args, FragmentContext, PlanError, Planner, Procedure};
    use ordain_model::{Call, ChunkNo, Db, Epoch, GatewayId, Millis, Placed, ProcedureId, Registry};

    use super::*;

    /// Writes every key; the first checks something, if the procedure is the second.
    struct WriteAll(bool);

    impl Procedure for WriteAll {
        fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
            for key in args.iter() {
                planner.key(0, Access::Write, key)?;
                if self.0 {
                    planner.abortable();
                }
            }
            Ok(())
        }

        fn run(&self, _: u16, _: &mut FragmentContext<'_>) -> Result<(), Abort> {
            Ok(())
        }
    }

    fn batch(procedure: u16, keys: &[&str]) -> Batch {
        let mut registry = Registry::default();
        registry.register(ProcedureId(1), "write", Arc::new(WriteAll(false)));
        registry.register(ProcedureId(2), "check", Arc::new(WriteAll(true)));
        let mut chunk = Chunk::new(GatewayId(0), ChunkNo(0));
        let call = Call::new(ProcedureId(procedure), Db(0));
        let bytes = encode(keys);
        let args = Args::parse(&bytes).unwrap();
        chunk.push(&registry, call, |out| args.iter().for_each(|arg| _ = out.push(arg.bytes))).unwrap();
        Batch {
            epoch: Epoch(1),
            layout: 1,
            now: Millis(1),
            total: 1,
            chunks: vec![Placed::whole(0, Arc::new(chunk))],
            ..Batch::default()
        }
    }

    /// The choice of a batch that speculates.
    const SPECULATES: Option<Choice> = Some(Choice::Speculate(Cascade::Repair));

    fn executing(execution: Execution) -> Speculation {
        Speculation::new(execution, Cascade::Repair)
    }

    #[test]
    fn a_batch_says_something_if_somebody_in_it_would_wait_for_a_verdict() {
        let layout = Layout::even(1, 64).unwrap();
        for (execution, says) in [
            (Execution::Speculative, SPECULATES),
            (Execution::Auto, Some(Choice::Wait)),
            (Execution::Conservative, None),
        ] {
            let mut speculation = executing(execution);
            assert_eq!(speculation.choose(Micros(0), &batch(2, &["a", "b", "c"]), &layout), says);
            assert_eq!(speculation.choose(Micros(0), &batch(2, &["a"]), &layout), None, "it is alone");
            assert_eq!(
                speculation.choose(Micros(0), &batch(1, &["a", "b", "c"]), &layout),
                None,
                "it cannot abort"
            );
            let alone = Layout::even(1, 1).unwrap();
            assert_eq!(speculation.choose(Micros(0), &batch(2, &["a", "b", "c"]), &alone), None);
        }
        let mut dropping = Speculation::new(Execution::Speculative, Cascade::Abort);
        let says = dropping.choose(Micros(0), &batch(2, &["a", "b", "c"]), &layout);
        assert_eq!(says, Some(Choice::Speculate(Cascade::Abort)));
    }

    /// How many batches are closed before the first of them is executed.
    const AHEAD: usize = 3;

    /// Partitions whose epochs take as long as the way says in which they are executed.
    struct Load {
        batch: Batch,
        layout: Layout,
        partitions: Vec<Speculation>,
        now: Micros,
        /// The ways of the epochs that are closed and not executed.
        under_way: VecDeque<bool>,
        /// The way of the last epochs, and how many they are.
        run: (bool, u32),
        is_noisy: bool,
        /// Where noise comes from.
        seed: u64,
    }

    impl Load {
        fn new(execution: Execution, partitions: usize) -> Load {
            Load {
                batch: batch(2, &["a", "b", "c"]),
                layout: Layout::even(1, 64).unwrap(),
                partitions: vec![executing(execution); partitions],
                now: Micros(0),
                under_way: VecDeque::new(),
                run: (false, 0),
                is_noisy: false,
                seed: 0,
            }
        }

        /// Batches take half to one and a half times as long, one in a hundred ten times; and a partition has half to one and a
        /// half times as many transactions in them.
        fn noisy(execution: Execution, partitions: usize, seed: u64) -> Load {
            Load { is_noisy: true, seed, ..Load::new(execution, partitions) }
        }

        fn draw(&mut self, from: u64, to: u64) -> u64 {
            self.seed =
                self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            from + (self.seed >> 33) % (to - from)
        }

        /// One epoch; answers whether it is speculated, as the first of its batches says.
        fn epoch(&mut self, waiting: u64, speculating: u64) -> bool {
            let mut decided = None;
            for at in 0..self.partitions.len() {
                self.batch.total = if self.is_noisy { self.draw(200, 600) as u32 } else { 400 };
                let choice = self.partitions[at].choose(self.now, &self.batch, &self.layout);
                decided = decided.or(choice);
            }
            self.under_way.push_back(decided == SPECULATES);
            if self.under_way.len() > AHEAD {
                let takes = if self.under_way.pop_front().unwrap() { speculating } else { waiting };
                let takes = match (self.is_noisy, self.draw(0, 100), self.draw(takes / 2, takes + takes / 2))
                {
                    (false, ..) => takes,
                    (true, 0, _) => 10 * takes,
                    (true, _, noisy) => noisy,
                };
                self.now = self.now.plus(Micros(takes));
            }
            decided == SPECULATES
        }

        /// In which ways the next epochs are executed, and how many one after the other, up to so many changes.
        fn ways(&mut self, waiting: u64, speculating: u64, changes: usize) -> Vec<(&'static str, u32)> {
            let mut ways = Vec::new();
            while ways.len() < changes {
                let speculates = self.epoch(waiting, speculating);
                if self.run.0 != speculates && self.run.1 > 0 {
                    ways.push((
                        if self.run.0 { "speculates" } else { "waits" },
                        std::mem::take(&mut self.run.1),
                    ));
                }
                self.run = (speculates, self.run.1 + 1);
            }
            ways
        }

        /// How many epochs there are in so long, after a time that does not count.
        fn epochs(mut self, waiting: u64, speculating: u64, (warmup, time): (Micros, Micros)) -> f64 {
            let (mut counted, end) = (0.0, warmup.plus(time));
            while self.now < end {
                self.epoch(waiting, speculating);
                counted += f64::from(u8::from(self.now >= warmup));
            }
            counted
        }
    }

    #[test]
    fn the_other_way_is_tried_ever_more_rarely_while_it_is_no_use() {
        let mut load = Load::new(Execution::Auto, 1);
        for between in [LOOK, 56, 224, 896, 3584, MOST, MOST] {
            assert_eq!(load.ways(1000, 1010, 2), [("waits", between), ("speculates", TRY)]);
        }
        assert_eq!(load.ways(1000, 970, 2), [("waits", MOST), ("speculates", TRY)], "nor does so little pay");
        let mut always = Load::new(Execution::Speculative, 1);
        assert!((0..2 * MOST).all(|_| always.epoch(1000, 3000)));
    }

    #[test]
    fn a_try_that_lost_much_is_short_and_repeated_late() {
        let mut load = Load::new(Execution::Auto, 1);
        // The last that waited are executed within it.
        assert_eq!(load.ways(33_000, 99_000, 2), [("waits", LOOK), ("speculates", LOOK)]);
        let [("waits", between), ("speculates", LOOK)] = load.ways(33_000, 99_000, 2)[..] else { panic!() };
        assert!((1200..1500).contains(&between), "20 batches or so were lost, not {between} / 64");
        let mut cold = Load::new(Execution::Auto, 1);
        cold.ways(1000, 3000, 2);
        assert_eq!(cold.ways(1000, 3000, 1), [("waits", MOST_COLD)], "it may have been slow by chance");
    }

    #[test]
    fn what_was_not_clear_is_tried_again_before_long() {
        let mut load = Load::new(Execution::Auto, 1);
        assert_eq!(load.ways(33_000, 40_000, 2), [("waits", LOOK), ("speculates", TRY)]);
        assert_eq!(load.ways(33_000, 40_000, 2), [("waits", UNCLEAR * LOOK), ("speculates", TRY)]);
        assert!(
            (100..1000).contains(&load.ways(33_000, 40_000, 1)[0].1),
            "what it cost counts, not how often it was"
        );
    }

    #[test]
    fn a_way_that_won_by_far_is_taken_at_once_and_not_soon_doubted() {
        let mut load = Load::new(Execution::Auto, 1);
        let ways = load.ways(33_000, 11_000, 3);
        assert_eq!((ways[0], ways[2]), (("waits", LOOK), ("waits", LOOK)));
        assert_eq!(ways[1], ("speculates", LOOK + 1792), "to try the other costs 28 of its batches");
    }

    #[test]
    fn a_way_that_won_by_little_is_doubted_and_if_the_one_before_wins_back_that_was_chance() {
        let mut load = Load::new(Execution::Auto, 1);
        let tries = load.ways(1000, 1010, 5);
        assert_eq!(tries[4], ("waits", 224));
        // It wins once: soon the other is tried, and wins back.
        (1..TRY).for_each(|_| assert!(load.epoch(1000, 800)));
        assert_eq!(load.ways(1000, 1200, 1), [("speculates", SOON + 1)]);
        assert_eq!(load.ways(1000, 1200, 1), [("waits", TRY + 896)], "it was a try that was no use");
        // It wins, and again, and stays.
        assert_eq!(load.ways(1000, 800, 2), [("speculates", TRY + SOON), ("waits", TRY)]);
        assert!(load.ways(1000, 800, 1)[0].1 > 3 * SOON);
    }

    #[test]
    fn one_pause_says_nothing() {
        let mut load = Load::new(Execution::Auto, 1);
        (0..LOOK - 2).for_each(|_| assert!(!load.epoch(1000, 1010)));
        load.now = load.now.plus(Micros::from_millis(60_000));
        assert_eq!(load.ways(1000, 1010, 2), [("waits", 2), ("speculates", TRY)]);
        assert_eq!(load.ways(1000, 1010, 1), [("waits", 56)]);
        (0..LOOK - 2).for_each(|_| assert!(load.epoch(1000, 500)));
        load.now = load.now.plus(Micros::from_millis(60_000));
        assert!(load.ways(1000, 500, 1)[0].1 > TRY, "it won for all that");
    }

    #[test]
    fn whichever_way_is_faster_little_is_lost_to_finding_out() {
        let lost = |unit: u64, ratio: f64, time: (u64, u64), seed| {
            // The slower way takes the unit.
            let faster = (unit as f64 * ratio.min(1.0 / ratio)) as u64;
            let (waiting, speculating) = if ratio < 1.0 { (unit, faster) } else { (faster, unit) };
            let time = (Micros::from_millis(time.0), Micros::from_millis(time.1));
            let epochs = |execution| Load::noisy(execution, 4, seed).epochs(waiting, speculating, time);
            let better = epochs(Execution::Conservative).max(epochs(Execution::Speculative));
            1.0 - epochs(Execution::Auto) / better
        };
        for ratio in [0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0, 3.0] {
            for (unit, time, allowed) in [(33_000, (500, 10_000), 0.05), (1_000, (0, 4_000), 0.025)] {
                let all: f64 = (0..64).map(|seed| lost(unit, ratio, time, seed)).sum();
                assert!(all / 64.0 < allowed, "{unit} {ratio} {:.3}", all / 64.0);
            }
        }
    }
}
