//! Which batches may be executed before it is known what of them aborts (qstore.md, section 4.8: the choice is made batch by
//! batch and stands in the log, so that every replica makes the same).

use ordain_model::{Batch, Chunk, Execution, Layout, Micros, Txn};

/// How many batches are executed in the way that was found to be the faster one before the other is tried: at first, and
/// four times as many each time that it was no use, up to the most.
const SOON: u32 = 32;
const MOST: u32 = 4096;
/// How many the other has then. In the long run a try may take thrice its time and still costs less than a fiftieth.
const TRY: u32 = 32;
/// So many at the end of either are timed: those before are executed while some of the other kind still are.
const TIMED: u32 = 24;
/// By so much the other way must be faster: what is measured is noisy, and to change has its price.
const GAIN: f64 = 1.1;
/// If it is slower by so much after so many timed ones, that is enough of it.
const LOSS: f64 = 1.5;
const ENOUGH: u32 = 6;

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
    /// How many batches it has until the other is tried.
    between: u32,
    /// How many it had until a try after which the way was changed, as long as that was the last try: it may have been faster
    /// by chance.
    doubted: Option<u32>,
    /// The other way is tried.
    is_trial: bool,
    /// Batches so far, in this way.
    batches: u32,
    /// Since when it is timed, and how many transactions were closed since.
    since: Micros,
    txns: u64,
}

impl Speculation {
    pub(crate) const fn new(execution: Execution) -> Speculation {
        Speculation {
            execution,
            is_better: matches!(execution, Execution::Speculative),
            rate: 0.0,
            between: SOON,
            doubted: None,
            is_trial: false,
            batches: 0,
            since: Micros(0),
            txns: 0,
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
            self.count(now, batch.total);
        }
        self.is_better != self.is_trial
    }

    /// One more batch. So many at a time are closed as are executed, as soon as there are more than can be.
    fn count(&mut self, now: Micros, txns: u32) {
        let took = now.since(self.since).0.max(1);
        let rate = self.txns as f64 / took as f64;
        let timed = (self.batches + TIMED).saturating_sub(self.end());
        let is_hopeless = self.is_trial && timed >= ENOUGH && rate * LOSS < self.rate;
        if self.batches == self.end() || is_hopeless {
            if self.is_trial {
                self.judge(rate > self.rate * GAIN);
            } else {
                self.rate = rate;
            }
            self.is_trial = !self.is_trial;
            self.batches = 0;
        }
        if self.batches == self.end() - TIMED {
            (self.since, self.txns) = (now, 0);
        }
        self.txns += u64::from(txns);
        self.batches += 1;
    }

    /// The other way was tried.
    fn judge(&mut self, is_faster: bool) {
        let later = |between: u32| MOST.min(4 * between);
        self.is_better ^= is_faster;
        (self.between, self.doubted) = match (is_faster, self.doubted.take()) {
            // It is tried soon whether that was chance; and if so, it was a try that was no use.
            (true, None) => (SOON, Some(self.between)),
            (true, Some(before)) => (later(before), None),
            (false, _) => (later(self.between), None),
        };
    }

    /// How many batches the present way has.
    const fn end(&self) -> u32 {
        if self.is_trial { TRY } else { self.between }
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

    #[test]
    fn whichever_way_is_faster_is_gone_and_the_other_is_tried_now_and_then() {
        let layout = Layout::even(1, 64).unwrap();
        let abortable = batch(2, &["a", "b", "c"]);
        let mut auto = Speculation::new(Execution::Auto);
        let mut now = Micros(0);
        // So long takes a batch in either way; answers how many of these many were speculated.
        let mut go = |waiting: u64, speculating: u64, batches: u32| {
            let mut speculated = 0;
            for _ in 0..batches {
                let speculates = auto.chooses(now, &abortable, &layout);
                now = now.plus(Micros(if speculates { speculating } else { waiting }));
                speculated += u32::from(speculates);
            }
            speculated
        };
        for between in [SOON, 4 * SOON, 16 * SOON, 64 * SOON, MOST, MOST] {
            assert_eq!(go(1000, 1200, between), 0, "it did not pay, so it is tried later");
            assert_eq!(go(1000, 1200, TRY), TRY);
        }
        assert_eq!(go(1000, 3000, MOST), 0);
        const SHORT: u32 = TRY - TIMED + ENOUGH;
        assert_eq!(go(1000, 3000, SHORT), SHORT);
        assert_eq!(go(1000, 3000, MOST), 0, "it was so slow that it was soon enough");
        assert_eq!(go(1000, 950, TRY + MOST), TRY, "nor does so little pay");
        assert_eq!(go(3000, 1000, TRY), TRY, "waiting was as fast when it was timed");
        assert_eq!(go(3000, 1000, MOST), 0);
        assert_eq!(go(3000, 1000, TRY + SOON), TRY + SOON, "it has turned out to be faster");
        assert_eq!(go(3000, 1000, SHORT), 0, "now it is waiting that is tried, and soon");
        assert_eq!(go(3000, 1000, 4 * SOON), 4 * SOON);
        assert_eq!(go(1000, 3000, TRY), 0);
        assert_eq!(go(1000, 3000, 16 * SOON), 16 * SOON, "speculation was as fast when it was timed");
        assert_eq!(go(1000, 3000, TRY + SOON), 0, "waiting pays again by now");
        // By chance it seems faster, and that is found out soon; after that it is as if it had not been.
        assert_eq!(go(1000, 1200, TRY + 4 * SOON), TRY);
        assert_eq!(go(1000, 800, TRY), TRY);
        assert_eq!(go(1000, 1200, SOON), SOON);
        assert_eq!(go(1000, 1200, TRY + 16 * SOON), 0);
        assert_eq!(go(1000, 1200, TRY), TRY, "and not after so many as at first");
        let mut always = Speculation::new(Execution::Speculative);
        assert!((0..2 * MOST).all(|_| always.chooses(now, &abortable, &layout)));
    }
}
