//! Transactions that only read, and whose keys a reconnaissance finds: their real arguments are known nowhere but in their
//! answers.
//!
//! Such a transaction is not logged. It was answered because what it had found still held at its place, so a reconnaissance
//! of the reference executor at that place finds as much.

use std::sync::Arc;

use ordain_model::args::{Args, ArgsBuilder};
use ordain_model::procedure::{Known, Reconnaissance};
use ordain_model::reference::Result as Expected;
use ordain_model::{
    Call, Chunk, ChunkNo, Db, GatewayId, Gsn, Millis, OutcomeStatus, ReferenceExecutor, Registry, system,
};

/// The most steps of a reconnaissance.
const STEPS_MAX: usize = 1_000;

/// Executes what a request would have come to at a place; `None` if it is not a transaction that only reads.
pub(crate) fn run(
    registry: &Arc<Registry>,
    reference: &mut ReferenceExecutor,
    (gsn, now): (Gsn, Millis),
    (call, args): (Call, &[u8]),
) -> Option<Expected> {
    let code = registry.get(call.procedure)?;
    let asked = Args::parse(args)?;
    let mut known = Known::default();
    for _ in 0..STEPS_MAX {
        match code.reconnoitre(asked, &known).ok()? {
            Reconnaissance::Read(keys) => {
                let reads = || keys.iter().map(|(db, key)| (*db, &**key));
                let mut args = Vec::new();
                system::read_args(reads(), &mut ArgsBuilder::new(&mut args));
                let read = execute(registry, reference, (gsn, now), (Call::new(system::READ, Db(0)), &args))?;
                let read = system::read_reply(reads(), &read.reply)?;
                read.records.into_iter().for_each(|read| known.learn(read));
            }
            Reconnaissance::Ask(procedure, args) => {
                let asked = Call::new(procedure, call.db);
                let answer = execute(registry, reference, (gsn, now), (asked, &args))?;
                if answer.status != OutcomeStatus::Committed {
                    return Some(answer);
                }
                known.answers.push(answer.reply);
            }
            Reconnaissance::Ready(args) => return execute(registry, reference, (gsn, now), (call, &args)),
        }
    }
    None
}

fn execute(
    registry: &Arc<Registry>,
    reference: &mut ReferenceExecutor,
    (gsn, now): (Gsn, Millis),
    (call, args): (Call, &[u8]),
) -> Option<Expected> {
    let mut chunk = Chunk::new(GatewayId(0), ChunkNo(0));
    let args = Args::parse(args)?;
    let write = |out: &mut ArgsBuilder<'_>| args.iter().for_each(|arg| _ = out.push(arg.bytes));
    let txn = chunk.push(registry, call, write).ok()?.clone();
    txn.read_only.then(|| reference.run_txn(gsn, now, &chunk, &txn))
}
