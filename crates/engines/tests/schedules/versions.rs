//! Schedule 15: a version names a write, and never comes again (R-VERSION).

use ordain_commands::ids;
use ordain_commit::CommitEngine;
use ordain_model::{Abort, Args, ArgsBuilder, Cell, Db, OutcomeStatus, Value, Version, system};
use ordain_role::{Bug, Bugs, NodeId};

use crate::demand;
use crate::world::World;

/// The version of k, as WATCH reads it.
fn watch(w: &mut World, node: NodeId, k: &[u8]) -> Version {
    let key = (Db(0), k);
    let read = w.command(node, system::READ, &[&[0], k]);
    w.committed(read);
    let reply = w.answered(read).reply;
    system::read_reply([key], &reply).expect("a record").records[0].version
}

/// Evidence: a client watches k, and k is removed and made again, perhaps under another leader. Its block, which also writes
/// at another partition, must have no effect.
pub(crate) fn schedule_15(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    for changes in [false, true] {
        let mut w = World::new(engine, 2, bugs);
        let (k, own) = (w.key_in(1, 0), w.key_in(0, 0));
        let (a, b1) = (w.led_by(0), w.led_by(1));
        for args in [[&k, &b"1"[..]], [&own, b"1"]] {
            let written = w.command(b1, ids::SET, &args);
            w.committed(written);
        }
        let (version, own_version) = (watch(&mut w, a, &k), watch(&mut w, a, &own));
        let mut b = b1;
        if changes {
            w.depose(b1);
            b = w.another_leads(1, b1);
        }
        for (procedure, args) in [(ids::DEL, &[&k[..]][..]), (ids::SET, &[&k, b"2"])] {
            let changed = w.command(b, procedure, args);
            w.committed(changed);
        }
        let cell = Cell { value: Some(Value::String(b"3".to_vec())), ..Cell::ABSENT };
        let mut block = |number, watched: &[(Db, &[u8], Version)]| {
            let mut args = Vec::new();
            let mut writer = ArgsBuilder::new(&mut args);
            system::commit_args(watched.iter().cloned(), [(Db(0), &own[..], &cell)], &mut writer);
            let words = Args::parse(&args).expect("arguments").iter();
            let words: Vec<Vec<u8>> = words.map(|arg| arg.bytes.to_vec()).collect();
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            let block = w.command_in(a, Some((w.session_in(0), number)), system::COMMIT, &words);
            w.answered(block).status
        };
        let status = block(1, &[(Db(0), &k, version), (Db(0), &own, own_version)]);
        if status != OutcomeStatus::Aborted(Abort::Conflict) {
            return Err(format!("a watched key has changed, and its block is {status:?}"));
        }
        assert_eq!(block(2, &[(Db(0), &own, own_version)]), OutcomeStatus::Committed, "that one has not");
        w.end()?;
    }
    Ok(())
}

#[test]
fn schedule_15_a_version_names_a_write_and_never_comes_again() {
    demand(schedule_15, Bug::CountVersions);
}
