//! Schedule 19: checkpoints of several partitions fit together.

use std::collections::BTreeSet;

use ordain_commit::{AttemptId, CommitEngine, Content, CutMessage, Entry, Message};
use ordain_role::{Bug, Bugs};

use super::world::{Do, World};
use super::{demand, millis};

/// A transaction of A and B stands behind A's mark, and B has not heard of the cut from the node that has chosen it. B must mark it
/// before it installs the transaction: else half of that is restored.
fn schedule_19(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 3, bugs);
    let (x, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    let is_heard = |message: &Message| matches!(message, Message::Cut(CutMessage::Heard(_)));
    let late = w.hold(move |from, to, message| (from.node, to.node) == (c, b) && is_heard(message));
    w.save(c);
    w.until("A's mark", |w| w.gauge(a, "ordain_manager_cut") > 0.0 && w.holds_something());
    let t = w.ask(a, &[Do::Append(x), Do::Append(y)]);
    w.committed(t);
    w.run(millis(20));
    w.release(late);
    w.until("B's mark", |w| w.gauge(b, "ordain_manager_cut") > 0.0);
    // Disks know what is agreed on by what comes after it.
    let after = w.ask(a, &[Do::Append(x), Do::Append(y)]);
    w.committed(after);
    w.run(millis(20));
    let (of_a, of_b) = (w.log(0), w.log(1));
    let committed = before_mark(&of_a, |content| match content {
        Content::Commit(commit) => Some(commit.attempt),
        _ => None,
    })?;
    let installed = before_mark(&of_b, |content| match content {
        Content::Outcome(attempt, true) => Some(*attempt),
        _ => None,
    })?;
    match installed.difference(&committed).next() {
        Some(half) => Err(format!("B has {half} before the cut, and A has it behind")),
        None => w.end(),
    }
}

/// The attempts that a log names before its mark.
fn before_mark(
    log: &[std::sync::Arc<Entry>],
    named: impl Fn(&Content) -> Option<AttemptId>,
) -> Result<BTreeSet<AttemptId>, String> {
    let mark = log.iter().position(|entry| matches!(entry.content, Content::Mark));
    let mark = mark.ok_or("a partition has not marked the cut")?;
    Ok(log[..mark].iter().filter_map(|entry| named(&entry.content)).collect())
}

#[test]
fn schedule_19_a_cut_is_heard_of_before_what_is_behind_it() {
    demand(schedule_19, Bug::KeepCut);
}
