//! The relay: takes transactions from the front doors of its node to whoever leads their homes, and answers for them.
//!
//! A front door talks to the manager of its own node alone. That keeps what it has passed on until the answer comes: when
//! a home changes its leader, what has a session is asked of the new one, and takes effect once; of anything else nobody
//! may say what has become of it, unless the former leader does. Steps of interactive transactions are bound to one leader
//! ([`steps`]).

mod steps;

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_model::outcome::Outcome;
use ordain_model::{
    Abort, Chunk, ChunkNo, Effect, Front, GatewayId, Micros, OpenId, OutcomeBatch, OutcomeStatus,
    PartitionId, SessionId, Stamp, StampSource, Step, Token, Txn, Writer,
};
use ordain_role::{Address, NodeId};

use crate::concurrency::Snapshots;
use crate::desk::Desk;
use crate::ids::Lead;
use crate::message::{Relay as RelayMessage, Returned};
use crate::stamps::Stamps;
use crate::tokens::is_for_node;
use steps::{Fate, LOST, Route, Steps};

/// A transaction waits for so long for a leader of its home, or for what a former one has proposed to be agreed on or not.
const HOLD_FOR: Micros = Micros::from_millis(5_000);

/// It waits for so long if it is known to be in vain before an operator has done something.
const NAMED_AFTER: Micros = Micros::from_millis(500);

/// See the module.
#[derive(Debug, Default)]
pub struct Relay {
    chunks: BTreeMap<(GatewayId, ChunkNo), Passed>,
    steps: Steps,
    /// Something waits for a leader, or was asked of a former one that has not answered.
    waits: bool,
    /// The reason why this node's partition has no leader, which an operator has to see to.
    obstacle: Option<Arc<str>>,
}

/// A chunk of a front door of this node.
#[derive(Debug)]
struct Passed {
    chunk: Arc<Chunk>,
    /// Its only transaction is this step of an open one.
    step: Option<Step>,
    since: Micros,
    /// The transactions that are not answered, by their place in the list.
    open: BTreeMap<usize, Open>,
}

/// A transaction that is not answered.
#[derive(Clone, Copy, Debug)]
struct Open {
    home: PartitionId,
    /// The leader that has it; `None` while there is none.
    asked: Option<(NodeId, Lead)>,
    /// It was asked for before, and nobody has said that it had no effect.
    may_have_ended: bool,
}

/// Transactions of a chunk for the coordinator of this very node.
#[derive(Debug)]
pub struct Own {
    /// The chunk.
    pub chunk: Arc<Chunk>,
    /// Their places in its list.
    pub places: Vec<usize>,
    /// The only one is this step of an open transaction.
    pub step: Option<Step>,
}

impl Open {
    /// A transaction with this home, of which nobody was asked yet.
    const fn of(home: PartitionId) -> Open {
        Open { home, asked: None, may_have_ended: false }
    }

    /// True if nobody has it who leads: the leader that was asked has lost its claim, and answers what its log says of the
    /// decision that it had proposed. That may be never, if it is cut off or its disk is full.
    fn is_left(&self, desk: &Desk<'_>) -> bool {
        self.asked.is_none_or(|(node, lead)| {
            !desk.leaders.holds(lead) || node == desk.site.node && desk.lead != Some(lead)
        })
    }

    /// The leader that was asked may not answer: another is to be asked.
    fn forget(&mut self) {
        (self.asked, self.may_have_ended) = (None, true);
    }
}

impl Relay {
    /// The home of a transaction: the partition that keeps its session if it has one and may write, so that a request takes effect once
    /// whichever node it is sent to; or the only one that takes part, or the node's own. Where partitions are regions it is that.
    fn home(txn: Option<&Txn>, session: Option<SessionId>, chunk: &Chunk, desk: &Desk<'_>) -> PartitionId {
        let layout = &desk.site.layout;
        let only = || chunk.only_partition(txn.filter(|_| desk.site.regions.is_none())?, layout);
        session.map(|session| layout.home_partition_of(session)).or_else(only).unwrap_or(desk.site.partition)
    }

    /// Takes a chunk from a front door of this node, but for what is for the node itself.
    pub fn take(&mut self, chunk: Arc<Chunk>, desk: &mut Desk<'_>) -> Vec<Own> {
        let key = (chunk.gateway, chunk.number);
        let txns = chunk.txns().iter().enumerate().filter(|(_, txn)| !is_for_node(txn));
        let open = txns.map(|(at, txn)| {
            let session = txn.call.session.filter(|_| !txn.read_only).map(|(session, _)| session);
            (at, Open::of(Relay::home(Some(txn), session, &chunk, desk)))
        });
        let open: BTreeMap<usize, Open> = open.collect();
        if !open.is_empty() {
            self.chunks.insert(key, Passed { chunk, step: None, since: desk.elapsed(), open });
        }
        self.pass_on(key, desk)
    }

    /// Takes a step of an open transaction from a front door of this node.
    pub fn take_step(&mut self, step: Step, chunk: Arc<Chunk>, desk: &mut Desk<'_>) -> Vec<Own> {
        let home = self.steps.take(&step, || Relay::home(chunk.txns().first(), step.session, &chunk, desk));
        let key = (chunk.gateway, chunk.number);
        let open = Open::of(home.unwrap_or(desk.site.partition));
        let open = BTreeMap::from([(0, open)]);
        self.chunks.insert(key, Passed { chunk, step: Some(step), since: desk.elapsed(), open });
        self.pass_on(key, desk)
    }

    /// An open transaction is over for its client; answers the claim that keeps it open.
    pub fn abandon(&mut self, of: OpenId, desk: &mut Desk<'_>) -> Option<(NodeId, Lead)> {
        let claim = self.steps.abandon(of);
        // One that waits for a leader is not begun any more.
        let is_waiting = |passed: &Passed| {
            passed.step.is_some_and(|step| step.of == of)
                && passed.open.values().all(|open| open.asked.is_none())
        };
        let waiting = self.chunks.iter().filter(|(_, passed)| is_waiting(passed));
        let waiting: Vec<_> = waiting.map(|(key, _)| *key).collect();
        waiting.into_iter().for_each(|key| self.end_step(key, LOST, desk));
        claim
    }

    /// Passes on what of a chunk waits for a leader that is known now.
    fn pass_on(&mut self, key: (GatewayId, ChunkNo), desk: &mut Desk<'_>) -> Vec<Own> {
        let Some(passed) = self.chunks.get_mut(&key) else { return Vec::new() };
        let mut leaving: BTreeMap<(NodeId, Lead), Vec<usize>> = BTreeMap::new();
        for (at, open) in passed.open.iter_mut().filter(|(_, open)| open.asked.is_none()) {
            open.asked = match &passed.step {
                None => desk.leaders.reached(open.home),
                Some(step) => match self.steps.route(step, &passed.chunk.txns()[*at], desk.leaders) {
                    Route::To(node, lead) => Some((node, lead)),
                    Route::Waits => None,
                    Route::Lost => {
                        self.end_step(key, LOST, desk);
                        return Vec::new();
                    }
                },
            };
            open.asked.iter().for_each(|to| leaving.entry(*to).or_default().push(*at));
            self.waits |= open.asked.is_none();
        }
        let mut own = Vec::new();
        for ((node, lead), places) in leaving {
            if node == desk.site.node {
                own.push(Own { chunk: passed.chunk.clone(), places, step: passed.step });
                continue;
            }
            let chunk = match places.len() == passed.chunk.txns().len() {
                true => passed.chunk.clone(),
                false => Arc::new(passed.chunk.part(places)),
            };
            let manager = Address { node, role: desk.site.manager };
            // Other sources of stamps take no note of it, or need none.
            let has_stamps =
                desk.site.stamps != Stamps::OfTransaction && desk.site.source == StampSource::Hybrid;
            if has_stamps || desk.site.snapshots != Snapshots::Never {
                let view = desk.known.view(desk.site.snapshots);
                desk.out.send(manager, RelayMessage::Heard(desk.heard, view));
            }
            desk.out.send(
                manager,
                match passed.step {
                    Some(step) => RelayMessage::Step(lead, step, chunk),
                    None => RelayMessage::Submit(lead, chunk),
                },
            );
        }
        own
    }

    /// Passes on everything that waits for a leader that is known now.
    pub fn retry(&mut self, desk: &mut Desk<'_>) -> Vec<Own> {
        let waiting =
            self.chunks.iter().filter(|(_, passed)| passed.open.values().any(|open| open.asked.is_none()));
        let waiting: Vec<_> = waiting.map(|(key, _)| *key).collect();
        let mut all = self.chunks.values().flat_map(|passed| passed.open.values());
        self.waits = all.any(|open| open.asked.is_some() && open.is_left(desk));
        waiting.into_iter().flat_map(|key| self.pass_on(key, desk)).collect()
    }

    /// Hands outcomes of a node, or of this relay itself, to their front door. Those of transactions that nobody waits for are left
    /// out, and so are those of a step that another node was asked to run since.
    pub fn answer(&mut self, from: Option<NodeId>, mut batch: OutcomeBatch, desk: &mut Desk<'_>) {
        let gateway = batch.gateway;
        let awaited = batch.take_out(|outcome| self.close(from, gateway, outcome));
        if !awaited.is_empty() {
            desk.out.send(desk.site.gateway(gateway), Front::Outcomes(awaited));
        }
    }

    /// A transaction is answered; answers whether it was not before.
    fn close(&mut self, from: Option<NodeId>, gateway: GatewayId, outcome: &Outcome) -> bool {
        let key = (gateway, outcome.chunk);
        let Some(passed) = self.chunks.get_mut(&key) else { return false };
        let at = passed.chunk.txns().binary_search_by_key(&outcome.index, |txn| txn.index);
        if let Some(step) = &passed.step {
            let asked = at.ok().and_then(|at| passed.open.get(&at)).and_then(|open| open.asked);
            if from.is_some() && asked.map(|(node, _)| node) != from {
                return false;
            }
            self.steps.answered(step, outcome.status);
        }
        let was_open = at.is_ok_and(|at| passed.open.remove(&at).is_some());
        if passed.open.is_empty() {
            self.chunks.remove(&key);
        }
        was_open
    }

    /// Takes back transactions that a node has turned away. Those that it was asked for again meanwhile, under a later claim,
    /// stay there. A step of an open transaction is answered as lost, unless it may be asked again.
    pub fn give_back(&mut self, node: NodeId, returned: &Returned, desk: &mut Desk<'_>) {
        let Returned { asked, gateway, chunk, indexes } = returned;
        let key = (*gateway, *chunk);
        let Some(passed) = self.chunks.get_mut(&key) else { return };
        let fate = passed.step.zip(passed.chunk.txns().first());
        let fate = fate.map(|(step, txn)| Steps::turned_away(&step, txn));
        let mut is_back = false;
        for index in indexes {
            let at = passed.chunk.txns().binary_search_by_key(index, |txn| txn.index);
            if let Some(open) = at.ok().and_then(|at| passed.open.get_mut(&at)) {
                is_back |= open.asked.take_if(|of| *of == (node, *asked)).is_some();
            }
        }
        if let Some(Fate::Ends(status)) = fate.filter(|_| is_back) {
            self.end_step(key, status, desk);
        }
    }

    /// Gives up a node: transactions passed on to it may not have come, or their answers may be gone. One that has a session
    /// or only reads is asked again, and the end of anything else is not known.
    pub fn lose(&mut self, node: NodeId, desk: &mut Desk<'_>) {
        let is_lost = |open: &Open| open.asked.is_some_and(|(asked, _)| asked == node);
        let mut unknown: BTreeMap<GatewayId, OutcomeBatch> = BTreeMap::new();
        for passed in self.chunks.values_mut() {
            for (at, open) in passed.open.iter_mut().filter(|(_, open)| is_lost(open)) {
                let txn = &passed.chunk.txns()[*at];
                let fate = match &passed.step {
                    Some(step) => Steps::lost(step, txn),
                    None if may_repeat(txn) => Fate::Again,
                    None => Fate::Ends(OutcomeStatus::Unknown),
                };
                match fate {
                    Fate::Again => open.forget(),
                    Fate::Ends(status) => put(&mut unknown, &passed.chunk, txn, status),
                }
            }
        }
        unknown.into_values().for_each(|batch| self.answer(None, batch, desk));
    }

    /// A partition is led in a later term, by another node: what its former leader has and was not answered may be asked
    /// again of the new one, if it takes effect but once.
    ///
    /// A step of an open transaction of the former leader is lost, unless it is a commit that may yet be answered.
    pub fn move_on(&mut self, lead: Lead, desk: &mut Desk<'_>) {
        let is_former = |asked: Lead| asked.partition == lead.partition && asked.term < lead.term;
        let mut lost: BTreeMap<GatewayId, OutcomeBatch> = BTreeMap::new();
        for passed in self.chunks.values_mut() {
            for (at, open) in &mut passed.open {
                let txn = &passed.chunk.txns()[*at];
                let fate = passed.step.map(|step| Steps::lost(&step, txn));
                if fate == Some(Fate::Ends(LOST)) && open.asked.is_some_and(|(_, asked)| is_former(asked)) {
                    put(&mut lost, &passed.chunk, txn, LOST);
                }
                let may_repeat = fate.map_or_else(|| may_repeat(txn), |fate| fate == Fate::Again);
                if may_repeat && open.asked.is_some_and(|(_, asked)| is_former(asked)) {
                    open.forget();
                }
            }
        }
        lost.into_values().for_each(|batch| self.answer(None, batch, desk));
    }

    /// Ends a step that goes nowhere.
    fn end_step(&mut self, key: (GatewayId, ChunkNo), status: OutcomeStatus, desk: &mut Desk<'_>) {
        let mut batches = BTreeMap::new();
        if let Some(Passed { chunk, .. }) = self.chunks.get(&key) {
            chunk.txns().iter().for_each(|txn| put(&mut batches, chunk, txn, status));
        }
        batches.into_values().for_each(|batch| self.answer(None, batch, desk));
    }

    /// An operator has to see to it that the partition of this node gets a leader, for this reason; or not any more.
    pub fn set_obstacle(&mut self, reason: Option<Arc<str>>) {
        self.obstacle = reason;
    }

    /// Answers what has waited for a leader for too long: none has it. A former leader may have committed, or may yet, what it was
    /// asked for.
    pub fn expire(&mut self, desk: &mut Desk<'_>) {
        let mut late: BTreeMap<GatewayId, OutcomeBatch> = BTreeMap::new();
        for passed in self.chunks.values() {
            let hold_for = if self.obstacle.is_some() { NAMED_AFTER } else { HOLD_FOR };
            if desk.elapsed().since(passed.since) <= hold_for {
                continue;
            }
            for (at, open) in passed.open.iter().filter(|(_, open)| open.is_left(desk)) {
                let may_have_ended = open.may_have_ended || open.asked.is_some();
                let txn = &passed.chunk.txns()[*at];
                let commits = passed.step.map_or(!txn.read_only, |step| step.is_commit && step.may_write);
                let status = match passed.step {
                    _ if may_have_ended && commits => OutcomeStatus::Unknown,
                    Some(_) => OutcomeStatus::Aborted(Abort::Unavailable),
                    None => OutcomeStatus::Busy,
                };
                put_with(&mut late, (&passed.chunk, txn), status, self.obstacle.as_deref());
            }
        }
        late.into_values().for_each(|batch| self.answer(None, batch, desk));
    }

    /// True if something waits for a leader, or for a former one.
    pub const fn waits(&self) -> bool {
        self.waits
    }

    /// The number of interactive transactions of this node's front doors that are open.
    pub fn interactive(&self) -> usize {
        self.steps.len()
    }

    /// The number of transactions that are not answered.
    pub fn open(&self) -> usize {
        self.chunks.values().map(|passed| passed.open.len()).sum()
    }

    /// Checks what must hold between two events.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check(&self) -> Result<(), String> {
        match self.chunks.iter().find(|(_, passed)| passed.open.is_empty()) {
            Some(((gateway, chunk), _)) => {
                Err(format!("chunk {} of {gateway:?} is answered and kept", chunk.0))
            }
            None => Ok(()),
        }
    }
}

/// True if a transaction may be asked for twice.
fn may_repeat(txn: &Txn) -> bool {
    txn.read_only || txn.call.session.is_some()
}

fn put(batches: &mut BTreeMap<GatewayId, OutcomeBatch>, chunk: &Chunk, txn: &Txn, status: OutcomeStatus) {
    put_with(batches, (chunk, txn), status, None);
}

/// Adds the outcome of a transaction; if it was turned away, with the reason that an operator has to see to.
fn put_with(
    batches: &mut BTreeMap<GatewayId, OutcomeBatch>,
    (chunk, txn): (&Chunk, &Txn),
    status: OutcomeStatus,
    obstacle: Option<&str>,
) {
    let batch = batches.entry(chunk.gateway).or_insert_with(|| OutcomeBatch::new(chunk.gateway));
    let effect = Effect { stamp: Stamp::NONE, token: Token::NOTHING };
    batch.push(chunk.number, txn.index, effect, status, |out| match (status, obstacle) {
        (OutcomeStatus::Aborted(abort), _) => Writer(out).abort(abort),
        (OutcomeStatus::Busy, Some(reason)) => {
            Writer(out).error(format!("BUSY the region of this server cannot go on: {reason}"));
        }
        _ => {}
    });
}

#[cfg(test)]
mod tests {
    use ordain_model::{Call, Cell, Db, system};

    use super::*;
    use crate::bench::Bench;
    use crate::ids::Term;
    use crate::message::Message;

    const OTHER: PartitionId = PartitionId(1);
    const GATEWAY: GatewayId = GatewayId::of(0, 0);

    /// The nodes that are asked, and the ends that the front door hears.
    type Sent = (Vec<u16>, Vec<OutcomeStatus>);

    /// The relay of node 0. Nodes 1 and 3 hold the other partition.
    struct Hand {
        at: Bench,
        relay: Relay,
    }

    impl Hand {
        fn new() -> Hand {
            let mut at = Bench::new(0);
            system::register(Arc::get_mut(&mut at.site.registry).expect("nobody else has it"));
            Hand { at, relay: Relay::default() }
        }

        /// Has the relay do something.
        fn tell(&mut self, act: impl FnOnce(&mut Relay, &mut Desk<'_>)) -> Sent {
            let Hand { at, relay } = self;
            let (mut asked, mut ends) = (Vec::new(), Vec::new());
            for (to, message) in at.tell(|desk| act(relay, desk)) {
                match message {
                    Message::Relay(RelayMessage::Submit(..) | RelayMessage::Step(..)) => {
                        asked.push(to.node.0)
                    }
                    Message::Front(Front::Outcomes(batch)) => {
                        ends.extend(batch.outcomes.iter().map(|outcome| outcome.status));
                    }
                    other => panic!("{other:?}"),
                }
            }
            relay.check().unwrap();
            (asked, ends)
        }

        /// A node leads the other partition.
        fn leads(&mut self, node: u16, term: u64) -> Sent {
            let lead = Lead { partition: OTHER, term: Term(term) };
            assert!(self.at.leaders.note(lead, NodeId(node)));
            self.tell(|relay, desk| {
                relay.move_on(lead, desk);
                relay.retry(desk);
            })
        }

        /// A write of the other partition.
        fn chunk(&self, number: u64) -> Arc<Chunk> {
            let layout = &self.at.site.layout;
            let is_there = |key: &String| layout.region_of(key.as_bytes()) == OTHER;
            let key = (0..).map(|n| n.to_string()).find(is_there).unwrap();
            let mut chunk = Chunk::new(GATEWAY, ChunkNo(number)).in_cluster(0, layout.clone());
            let written = [(Db(0), key.as_bytes(), &Cell::ABSENT)];
            let call = Call::new(system::COMMIT, Db(0));
            let registry = &self.at.site.registry;
            chunk.push(registry, call, |args| system::commit_args([].into_iter(), written, args)).unwrap();
            Arc::new(chunk)
        }

        /// A node answers a transaction.
        fn answered(&mut self, node: u16, number: u64) -> Sent {
            let mut batch = OutcomeBatch::new(GATEWAY);
            let effect = Effect { stamp: Stamp::NONE, token: Token::NOTHING };
            batch.push(ChunkNo(number), 0, effect, OutcomeStatus::Committed, |_| {});
            self.tell(|relay, desk| relay.answer(Some(NodeId(node)), batch, desk))
        }
    }

    #[test]
    fn a_step_is_answered_by_the_node_that_was_asked_last() {
        let mut hand = Hand::new();
        let _ = hand.leads(1, 5);
        let of = OpenId { gateway: GATEWAY, number: 1 };
        let step = Step { of, number: 1, session: None, is_commit: false, may_write: true };
        let chunk = hand.chunk(0);
        assert_eq!(hand.tell(|relay, desk| _ = relay.take_step(step, chunk, desk)), (vec![1], vec![]));
        assert_eq!(hand.leads(3, 6), (vec![3], vec![]), "nothing of it was shown");
        assert_eq!(hand.answered(1, 0), (vec![], vec![]));
        assert_eq!(hand.answered(3, 0), (vec![], vec![OutcomeStatus::Committed]));
    }

    /// A decision that a former leader has proposed is answered by it, if its log tells it of that in time.
    #[test]
    fn the_end_of_what_a_former_leader_does_not_answer_is_unknown() {
        for is_late in [false, true] {
            let mut hand = Hand::new();
            let _ = hand.leads(1, 5);
            let chunk = hand.chunk(0);
            assert_eq!(hand.tell(|relay, desk| _ = relay.take(chunk, desk)), (vec![1], vec![]));
            hand.at.elapsed = HOLD_FOR.plus(HOLD_FOR);
            assert_eq!(hand.tell(Relay::expire), (vec![], vec![]), "its leader leads");
            assert!(!hand.relay.waits());
            assert_eq!(hand.leads(3, 6), (vec![], vec![]), "it must not be asked for twice");
            assert!(hand.relay.waits());
            let mut ends = vec![OutcomeStatus::Committed];
            if is_late {
                assert_eq!(hand.tell(Relay::expire), (vec![], vec![OutcomeStatus::Unknown]));
                ends.clear();
            }
            assert_eq!(hand.answered(1, 0), (vec![], ends));
            let _ = hand.tell(|relay, desk| _ = relay.retry(desk));
            assert!(!hand.relay.waits());
        }
    }
}
