//! Which batches may be executed before it is known what of them aborts (qstore.md, section 4.8: the choice is made batch by
//! batch and stands in the log, so that every replica makes the same).

use ordain_model::{Batch, Chunk, Execution, Layout, Txn};

/// Beyond this share of undone transactions it does not pay. Waiting for verdicts was measured to cost four to six times what
/// executing once without waiting does, and what is undone costs both: so it pays up to four of five (decision 22; qstore.md,
/// section 4.8, says 1%).
const SHARE: f64 = 0.8;
/// How much what was seen last counts against what was seen before.
const WEIGHT: f64 = 0.25;
/// So many batches later it is tried again.
const PAUSE: u32 = 64;

/// What the sequencer knows of how speculation pays.
#[derive(Clone, Debug)]
pub(crate) struct Speculation {
    execution: Execution,
    /// What share of the transactions had to be undone, of late.
    undone: f64,
    /// How many batches are still not to be speculated.
    pause: u32,
}

impl Speculation {
    pub(crate) const fn new(execution: Execution) -> Speculation {
        Speculation { execution, undone: 0.0, pause: 0 }
    }

    /// Whether a batch is to be executed so. It is only worth while if somebody would have to wait for a verdict.
    pub(crate) fn chooses(&mut self, batch: &Batch, layout: &Layout) -> bool {
        if self.execution == Execution::Conservative {
            return false;
        }
        let waits = |(_, chunk, txn): (_, &std::sync::Arc<Chunk>, &Txn)| {
            txn.logged && txn.abortable && !txn.table && crosses(chunk, txn, layout)
        };
        if !batch.txns().any(waits) {
            return false;
        }
        if self.execution == Execution::Auto && self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        true
    }

    /// What became of a unit: so many transactions, and so many of them that were undone.
    pub(crate) fn note(&mut self, txns: u32, undone: u32) {
        if txns == 0 {
            return;
        }
        let share = f64::from(undone) / f64::from(txns);
        self.undone += (share - self.undone) * WEIGHT;
        if self.undone > SHARE {
            // One more try, and if that is no better, the next pause.
            self.pause = PAUSE;
            self.undone = SHARE;
        }
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
    use ordain_model::{
        Call, ChunkNo, Db, Epoch, GatewayId, Millis, PartitionId, Placed, ProcedureId, Registry,
    };

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
            partition: PartitionId(0),
            layout: 1,
            speculative: None,
            now: Millis(1),
            total: 1,
            chunks: vec![Placed::whole(0, Arc::new(chunk))],
            lookups: Vec::new(),
        }
    }

    #[test]
    fn a_batch_is_speculated_in_which_somebody_would_wait_for_a_verdict() {
        let layout = Layout::even(1, 64).unwrap();
        let mut speculation = Speculation::new(Execution::Speculative);
        assert!(speculation.chooses(&batch(2, &["a", "b", "c"]), &layout));
        assert!(!speculation.chooses(&batch(2, &["a"]), &layout), "it is alone");
        assert!(!speculation.chooses(&batch(1, &["a", "b", "c"]), &layout), "it cannot abort");
        assert!(!speculation.chooses(&batch(2, &["a", "b", "c"]), &Layout::even(1, 1).unwrap()));
        assert!(!Speculation::new(Execution::Conservative).chooses(&batch(2, &["a", "b"]), &layout));
    }

    #[test]
    fn where_much_is_done_twice_it_pauses_and_tries_again() {
        let layout = Layout::even(1, 64).unwrap();
        let abortable = batch(2, &["a", "b", "c"]);
        let mut auto = Speculation::new(Execution::Auto);
        for _ in 0..100 {
            auto.note(1000, 700);
            assert!(auto.chooses(&abortable, &layout), "it still pays");
        }
        (0..10).for_each(|_| auto.note(1000, 990));
        let chosen = |auto: &mut Speculation| (0..1000).position(|_| auto.chooses(&abortable, &layout));
        assert_eq!(chosen(&mut auto), Some(PAUSE as usize));
        auto.note(1000, 990);
        assert_eq!(chosen(&mut auto), Some(PAUSE as usize), "no better");
        (0..10).for_each(|_| auto.note(1000, 0));
        assert_eq!(chosen(&mut auto), Some(0));
        let mut always = Speculation::new(Execution::Speculative);
        always.note(10, 10);
        assert!(always.chooses(&abortable, &layout));
    }
}
