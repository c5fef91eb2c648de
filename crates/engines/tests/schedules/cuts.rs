//! Schedule 19: checkpoints of several partitions fit together.

use std::collections::BTreeSet;
use std::sync::Arc;

use ordain_commit::{AttemptId, CommitEngine, Content, CutMessage, Entry, Message, Protocol};
use ordain_role::{Bug, Bugs, NodeId};

use super::world::{Do, World};
use super::{demand, millis, said};

/// A transaction of A and B stands behind A's mark, and B has not heard of the cut from the node that has chosen it. B must mark it
/// before it installs the transaction: else half of that is restored.
pub(crate) fn schedule_19_heard(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 3, bugs);
    let (x, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    let is_heard = |message: &Message| matches!(message, Message::Cut(CutMessage::Heard(_)));
    let late = w.hold(move |from, to, message| (from.node, to.node) == (c, b) && is_heard(message));
    w.save(c);
    w.until("A's mark", |w| marked(w, a) && w.holds_something());
    let t = w.ask(a, &[Do::Append(x), Do::Append(y)]);
    w.committed(t);
    w.run(millis(20));
    w.release(late);
    fits(w, &[Do::Append(x), Do::Append(y)])
}

/// B has promised a transaction whose decision stands behind A's mark, and hears of the cut before the decision. It must mark the cut
/// before it installs the transaction.
pub(crate) fn schedule_19_marked(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 3, bugs);
    let (x, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    let is_at = |message: &Message| matches!(message, Message::Cut(CutMessage::At(..)));
    let place = w.hold(move |from, to, message| (from.node, to.node) == (c, a) && is_at(message));
    w.save(a);
    w.until("C's place", World::holds_something);
    let vote = w.hold(move |from, to, message| {
        (from.node, to.node) == (b, a) && matches!(said(message), Some(Protocol::Vote(..)))
    });
    let t = w.ask(a, &[Do::Append(x), Do::Append(y)]);
    w.until("B's promise", |w| w.gauge(b, "ordain_cohort_prepared") > 0.0);
    w.release(place);
    w.until("A's mark", |w| marked(w, a));
    w.run(millis(5));
    w.release(vote);
    w.committed(t);
    fits(w, &[Do::Append(x), Do::Append(y)])
}

fn marked(w: &World, node: NodeId) -> bool {
    w.gauge(node, "ordain_manager_cut") > 0.0
}

/// Checks that B has installed nothing before its mark that A has committed behind its own.
fn fits(mut w: World, ops: &[Do]) -> Result<(), String> {
    let b = w.led_by(1);
    w.until("B's mark", |w| marked(w, b));
    // Disks know what is agreed on by what comes after it.
    let after = w.ask(w.led_by(0), ops);
    w.committed(after);
    w.run(millis(20));
    let (of_a, of_b) = (w.log(0), w.log(1));
    let committed = before_mark(&of_a, |content| match content {
        Content::Commit(commit) => Some(commit.attempt),
        _ => None,
    })?;
    let installed = before_mark(&of_b, |content| match content {
        Content::Outcome(attempt, Some(_)) => Some(*attempt),
        _ => None,
    })?;
    match installed.difference(&committed).next() {
        Some(half) => Err(format!("B has {half} before the cut, and A has it behind")),
        None => w.end(),
    }
}

/// The attempts that a log names before its mark.
fn before_mark(
    log: &[Arc<Entry>],
    named: impl Fn(&Content) -> Option<AttemptId>,
) -> Result<BTreeSet<AttemptId>, String> {
    let mark = log.iter().position(|entry| matches!(entry.content, Content::Mark));
    let mark = mark.ok_or("a partition has not marked the cut")?;
    Ok(log[..mark].iter().filter_map(|entry| named(&entry.content)).collect())
}

#[test]
fn schedule_19_a_cut_is_heard_of_before_what_is_behind_it() {
    demand(schedule_19_heard, Bug::KeepCut);
}

#[test]
fn schedule_19_a_cut_is_marked_before_what_comes_after_it() {
    demand(schedule_19_marked, Bug::MarkLate);
}
