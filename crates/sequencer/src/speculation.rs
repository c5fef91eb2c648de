//! Which batches may be executed before it is known what of them aborts (qstore.md, section 4.8: the choice is made batch by
//! batch and stands in the log, so that every replica makes the same).

use ordain_model::{Batch, Chunk, Epoch, Execution, Layout, Micros, Txn};

/// In how many epochs one way is tried that is not the one in use: at first, soon after the way was changed, and four times as
/// many each time that it was no use, up to the most. All are powers of two, and a try begins in an epoch that its number
/// divides: so all partitions try at once, as far as they agree, though none of them asks another.
const FIRST: u32 = 32;
const SOON: u32 = 32;
const MOST: u32 = 4096;
/// So many epochs earlier than otherwise it is waiting that is tried: partitions that do not agree must not change at once, or each would
/// find the other's way in force whatever it tries.
const APART: u64 = 64;
/// How many batches a try has.
const TRY: u32 = 32;
/// So many at the beginning of either are not timed: they are executed while some of the other kind still are.
const SETTLE: u32 = 8;
/// Of those in use so many, and up to twice as many, are timed before a try.
const TIMED: u32 = 24;
/// By so much the other way must be faster: what is measured is noisy, and to change has its price.
const GAIN: f64 = 1.1;
/// If it is slower by so much after so many timed ones, that is enough of it.
const LOSS: f64 = 1.3;
const ENOUGH: u32 = 6;
/// So many times as many batches as a try has cost there are before the next: a try costs no more than such a part of the time.
/// The first may have been slow by chance, so there are no more than so many times as many epochs as there were before.
const SHARE: f64 = 64.0;
const DOUBT: u32 = 16;

/// What the sequencer knows of how speculation pays.
///
/// It depends on who waits for what, on how far away that is and on how much has to be undone: so it is tried
/// (decision 26; qstore.md, section 4.8, would compute it from how much aborts).
#[derive(Clone, Debug)]
pub(crate) struct Speculation {
    execution: Execution,
    /// The way that was found to be the faster one.
    is_better: bool,
    /// How many transactions a microsecond it did when it was timed last.
    rate: f64,
    /// In how many epochs the other is tried once.
    between: u32,
    /// In how many it was, until a try after which the way was changed, as long as that was the last try: it may have been
    /// faster by chance.
    doubted: Option<u32>,
    /// The other way is tried.
    is_trial: bool,
    /// The epoch of the last batch that counts.
    epoch: Epoch,
    /// Batches so far, in this way.
    batches: u32,
    /// All of them, those of them that are timed last, and those that were before.
    all: Timed,
    timed: Timed,
    before: Timed,
}

/// Batches that are timed.
#[derive(Clone, Copy, Debug, Default)]
struct Timed {
    since: Micros,
    /// How many transactions were closed since.
    txns: u64,
}

impl Speculation {
    pub(crate) fn new(execution: Execution) -> Speculation {
        Speculation {
            execution,
            is_better: matches!(execution, Execution::Speculative),
            rate: 0.0,
            between: FIRST,
            doubted: None,
            is_trial: false,
            epoch: Epoch::default(),
            batches: 0,
            all: Timed::default(),
            timed: Timed::default(),
            before: Timed::default(),
        }
    }

    /// Whether a batch that is closed now is to be executed so. It is only worth while if somebody would have to wait for
    /// a verdict.
    pub(crate) fn chooses(&mut self, now: Micros, batch: &Batch, layout: &Layout) -> bool {
        if self.execution == Execution::Conservative {
            return false;
        }
        let waits = |(_, chunk, txn): (_, &std::sync::Arc<Chunk>, &Txn)| {
            txn.logged && txn.abortable && !txn.table && crosses(chunk, txn, layout)
        };
        if !batch.txns().any(waits) {
            return false;
        }
        if self.execution == Execution::Auto {
            self.count(now, batch.epoch, batch.total);
        }
        self.is_better != self.is_trial
    }

    /// One more batch. So many at a time are closed as are executed, as soon as there are more than can be.
    fn count(&mut self, now: Micros, epoch: Epoch, txns: u32) {
        if self.is_over(now, epoch) {
            match self.is_trial {
                true => self.judge(now),
                false => self.rate = self.rate_until(now),
            }
            self.is_trial = !self.is_trial;
            self.batches = 0;
            self.all = Timed { since: now, txns: 0 };
        }
        if self.batches == SETTLE {
            self.timed = Timed { since: now, txns: 0 };
            self.before = self.timed;
        } else if !self.is_trial && self.batches > SETTLE && (self.batches - SETTLE).is_multiple_of(TIMED) {
            self.before = std::mem::replace(&mut self.timed, Timed { since: now, txns: 0 });
        }
        self.all.txns += u64::from(txns);
        self.timed.txns += u64::from(txns);
        self.batches += 1;
        self.epoch = epoch;
    }

    /// Whether the present way has had its batches.
    fn is_over(&self, now: Micros, epoch: Epoch) -> bool {
        if self.is_trial {
            let is_enough = self.batches >= SETTLE + ENOUGH;
            return self.batches == TRY || is_enough && self.rate_until(now) * LOSS < self.rate;
        }
        let apart = if self.is_better { APART } else { 0 };
        let turn = |epoch: Epoch| (epoch.0 + apart) / u64::from(self.between);
        self.batches >= FIRST.max(self.between / 4) && turn(epoch) > turn(self.epoch)
    }

    /// How many transactions a microsecond were closed of late, in the present way.
    fn rate_until(&self, now: Micros) -> f64 {
        let txns = match self.before.since == self.timed.since {
            true => self.timed.txns,
            false => self.before.txns + self.timed.txns,
        };
        txns as f64 / now.since(self.before.since).0.max(1) as f64
    }

    /// The other way was tried.
    fn judge(&mut self, now: Micros) {
        let is_faster = self.rate_until(now) > self.rate * GAIN;
        // What would have been executed in this time, changing included, and how many batches it would have been more.
        let usual = self.rate * now.since(self.all.since).0 as f64;
        let lost = f64::from(self.batches) * (usual / self.all.txns as f64 - 1.0).max(0.0);
        let affordable = ((lost * SHARE) as u32).min(MOST).next_power_of_two();
        let is_first = self.between == FIRST && self.doubted.is_none();
        let later = |between: u32| {
            let most = if is_first { DOUBT * between } else { MOST };
            affordable.max(4 * between).min(most)
        };
        self.is_better ^= is_faster;
        (self.between, self.doubted) = match (is_faster, self.doubted.take()) {
            // It is tried soon whether that was chance; and if so, it was a try that was no use.
            (true, None) => (SOON, Some(self.between)),
            (true, Some(before)) => (later(before), None),
            (false, _) => (later(self.between), None),
        };
    }
}

/// Whether several shards take part.
fn crosses(chunk: &Chunk, txn: &Txn, layout: &Layout) -> bool {
    let mut shards = chunk.fragments(txn).iter().map(|fragment| layout.shard_of(fragment.hash.slot()));
    let first = shards.next();
    shards.any(|shard| Some(shard) != first)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ordain_model::args::encode;
    use ordain_model::{Abort, Access, Args, FragmentContext, PlanError, Planner, Procedure};
    use ordain_model::{Call, ChunkNo, Db, GatewayId, Millis, Placed, ProcedureId, Registry};

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

    #[test]
    fn a_batch_is_speculated_in_which_somebody_would_wait_for_a_verdict() {
        let layout = Layout::even(1, 64).unwrap();
        let mut speculation = Speculation::new(Execution::Speculative);
        assert!(speculation.chooses(Micros(0), &batch(2, &["a", "b", "c"]), &layout));
        assert!(!speculation.chooses(Micros(0), &batch(2, &["a"]), &layout), "it is alone");
        assert!(!speculation.chooses(Micros(0), &batch(1, &["a", "b", "c"]), &layout), "it cannot abort");
        assert!(!speculation.chooses(Micros(0), &batch(2, &["a", "b", "c"]), &Layout::even(1, 1).unwrap()));
        assert!(!Speculation::new(Execution::Conservative).chooses(
            Micros(0),
            &batch(2, &["a", "b"]),
            &layout
        ));
    }

    /// Partitions whose batches take as long as the way says in which they are executed.
    struct Load {
        batch: Batch,
        layout: Layout,
        partitions: Vec<Speculation>,
        now: Micros,
        is_noisy: bool,
        /// Where noise comes from.
        seed: u64,
    }

    impl Load {
        fn new(execution: Execution, partitions: usize) -> Load {
            Load {
                batch: batch(2, &["a", "b", "c"]),
                layout: Layout::even(1, 64).unwrap(),
                partitions: vec![Speculation::new(execution); partitions],
                now: Micros(0),
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

        /// One epoch; answers how many speculated. A unit takes in what comes after it, and who waits makes all wait: if not
        /// all do the same, it takes as long as the slower way.
        fn epoch(&mut self, waiting: u64, speculating: u64) -> usize {
            self.batch.epoch = self.batch.epoch.next();
            let mut speculated = 0;
            for at in 0..self.partitions.len() {
                self.batch.total = if self.is_noisy { self.draw(200, 600) as u32 } else { 400 };
                let chosen = self.partitions[at].chooses(self.now, &self.batch, &self.layout);
                speculated += usize::from(chosen);
            }
            let (all, speculates) = (self.partitions.len() as u64, speculated as u64);
            let takes = ((all - speculates) * waiting + speculates * speculating) / all;
            let takes = match (self.is_noisy, self.draw(0, 100), self.draw(takes / 2, takes + takes / 2)) {
                (false, ..) => takes,
                (true, 0, _) => 10 * takes,
                (true, _, noisy) => noisy,
            };
            self.now = self.now.plus(Micros(takes));
            speculated
        }

        /// How many epochs more it executes in the way of the next, where they take so long in either way.
        fn stays(&mut self, waiting: u64, speculating: u64) -> u32 {
            let speculates = self.epoch(waiting, speculating);
            (1..2 * MOST).find(|_| self.epoch(waiting, speculating) != speculates).unwrap()
        }

        /// How long so many epochs take.
        fn takes(mut self, waiting: u64, speculating: u64, epochs: u32) -> f64 {
            for _ in 0..epochs {
                self.epoch(waiting, speculating);
            }
            self.now.0 as f64
        }
    }

    /// Whether a way had so many epochs as is to be expected if the other is tried in one of so many.
    fn is_one_of(between: u32, epochs: u32) -> bool {
        (between / 4..2 * between).contains(&(epochs + 1))
    }

    /// As seen from outside: the first of its batches had to be looked at to see that it began.
    const TRIED: u32 = TRY - 1;
    const SEEN_TO_LOSE: u32 = SETTLE + ENOUGH - 1;

    #[test]
    fn the_other_way_is_tried_ever_more_rarely_while_it_is_no_use() {
        let mut load = Load::new(Execution::Auto, 1);
        assert!((FIRST..2 * FIRST).contains(&load.stays(1000, 1010)));
        for between in [4 * FIRST, 16 * FIRST, 64 * FIRST, MOST, MOST] {
            assert_eq!(load.stays(1000, 1010), TRIED);
            let waits = load.stays(1000, 1010);
            assert!(is_one_of(between, waits), "{waits} of {between}");
        }
        assert_eq!(load.stays(1000, 950), TRIED);
        assert!(is_one_of(MOST, load.stays(1000, 950)), "nor does so little pay");
        let always = Speculation::new(Execution::Speculative);
        let mut always = Load { partitions: vec![always], ..Load::new(Execution::Auto, 1) };
        assert!((0..2 * MOST).all(|_| always.epoch(1000, 3000) == 1));
    }

    #[test]
    fn a_try_that_lost_much_is_repeated_late() {
        let mut load = Load::new(Execution::Auto, 1);
        load.stays(1000, 3000);
        assert_eq!(load.stays(1000, 3000), SEEN_TO_LOSE);
        assert!(is_one_of(DOUBT * FIRST, load.stays(1000, 3000)), "it may have been slow by chance");
        assert_eq!(load.stays(1000, 3000), SEEN_TO_LOSE);
        // 14 batches took as long as 42 would have, so 28 were lost.
        assert!(is_one_of(2048, load.stays(1000, 3000)));
    }

    #[test]
    fn a_way_that_won_is_doubted_and_if_the_one_before_wins_back_that_was_chance() {
        let mut load = Load::new(Execution::Auto, 1);
        for _ in 0..3 {
            load.stays(1000, 1010);
        }
        // It wins once: soon the other is tried, and wins back.
        (0..TRIED).for_each(|_| assert_eq!(load.epoch(1000, 800), 1));
        assert!(is_one_of(SOON, load.stays(1000, 1200)));
        assert!(is_one_of(16 * FIRST, load.stays(1000, 1200) - TRIED), "it was a try that was no use");
        // It wins, and again, and stays.
        assert!(is_one_of(SOON, load.stays(1000, 500) - TRIED));
        assert_eq!(load.stays(1000, 500), SEEN_TO_LOSE);
        assert!(load.stays(1000, 500) > 8 * SOON);
    }

    #[test]
    fn whichever_way_is_faster_little_is_lost_to_finding_out() {
        let lost = |partitions, speculating, seed| {
            let takes = |execution| Load::noisy(execution, partitions, seed).takes(1000, speculating, MOST);
            let better = takes(Execution::Conservative).min(takes(Execution::Speculative));
            1.0 - better / takes(Execution::Auto)
        };
        for partitions in [1, 4] {
            for speculating in [300, 500, 700, 800, 900, 950, 1000, 1050, 1100, 1200, 1500, 2000, 3000] {
                let all: f64 = (0..16).map(|seed| lost(partitions, speculating, seed)).sum();
                assert!(all / 16.0 < 0.06, "{partitions} {speculating} {:.3}", all / 16.0);
            }
        }
    }
}
