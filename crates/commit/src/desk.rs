//! The desk of a manager: what its parts need of each other and of the world while they handle an event.

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_family::places;
use ordain_model::{
    Abort, Backoff, Chunk, Epoch, GatewayId, GcIds, Install, Layout, Micros, Millis, PartitionId, Registry,
    RoMode, StampSource,
};
use ordain_replication::Log;
use ordain_role::{Address, Bugs, NodeId, Now, Outbox};

use crate::agreed::Agreed;
use crate::concurrency::Snapshots;
use crate::entry::{Commit, Content, Entry, Prepare};
use crate::figures::Traffic;
use crate::ids::{Age, AttemptId, Bounds, Lead, Term};
use crate::known::Known;
use crate::message::{Access, Accesses, Message, Own, Protocol, Termed};
use crate::regions::Views;
use crate::stamps::Stamps;

/// The facts of a node that do not change.
#[derive(Clone, Debug)]
pub struct Site {
    /// The node.
    pub node: NodeId,
    /// The number of nodes of the cluster that execute; they come first.
    pub nodes: u16,
    /// The partition that it holds.
    pub partition: PartitionId,
    /// The layout of the cluster.
    pub layout: Arc<Layout>,
    /// The procedures.
    pub registry: Arc<Registry>,
    /// The role number of managers, the same on every node.
    pub manager: u16,
    /// The log of the partition, on this node.
    pub log: Address,
    /// The name of the cluster and its engine in tokens.
    pub database: u32,
    /// A number that grows from one start of the node to the next: a node that keeps nothing has no other term to begin.
    pub life: u64,
    /// The pause between two attempts at a transaction.
    pub backoff: Backoff,
    /// The reason for which the concurrency control refuses an access.
    pub refusal: Abort,
    /// The life of the stamps by which it decides.
    pub stamps: Stamps,
    /// True if the concurrency control decides about attempts when they are to commit.
    pub validates: bool,
    /// True if regions lock what a transaction of several writes before any of them validates what it has read.
    pub locks_first: bool,
    /// When attempts take their snapshots.
    pub snapshots: Snapshots,
    /// The ways in which decisions become known, and readers that are over, with snapshots.
    pub propagation: Propagation,
    /// The ways of regions; none where partitions are not regions.
    pub regions: Option<Regional>,
    /// True if what only reads here sees the region as it was when nothing was in doubt, rather than to wait.
    pub resolves: bool,
    /// True if views show what this region has committed in the others before their logs tell of it.
    pub overlays: bool,
    /// True if the log hands entries on before they are durable.
    pub is_early: bool,
    /// The source of the stamps of attempts.
    pub source: StampSource,
    /// The clock that gives stamps is so far ahead.
    pub skew: Micros,
    /// After about so many bytes of entries the partition's leader wants a checkpoint; 0: only clients do.
    pub checkpoint_bytes: u64,
    /// Bugs that a test has planted.
    pub bugs: Bugs,
}

/// The ways of regions with each other.
#[derive(Clone, Copy, Debug)]
pub struct Regional {
    /// The mode in which transactions that only read see other regions.
    pub reading: RoMode,
    /// The records of a transaction of several regions are reserved once others have refused it so often; 0: never.
    pub m_retries: u32,
}

/// The ways in which decisions become known elsewhere, and readers that are over, of engines with snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Propagation {
    /// Others are told so late of what was decided without them, at least.
    pub delay: Micros,
    /// When a partition installs what another home has decided.
    pub install: Install,
    /// The word about readers that are over.
    pub gc_ids: GcIds,
    /// Attempts begin with all that any message has told of.
    pub fresh_begin: bool,
}

impl Site {
    /// The address of a role of this node.
    pub const fn at(&self, role: u16) -> Address {
        Address { node: self.node, role }
    }

    /// The participant that holds a shard, on a node that holds its partition.
    pub fn participant(&self, node: NodeId, shard: usize) -> Address {
        let first = self.layout.shards_of(self.layout.partition_of_shard(shard)).start;
        Address { node, role: places::SHARDS + (shard - first) as u16 }
    }

    /// The participants of this node.
    pub fn own_participants(&self) -> impl Iterator<Item = Address> + '_ {
        self.layout.shards_of(self.partition).map(|shard| self.participant(self.node, shard))
    }

    /// The front door of a gateway.
    pub const fn gateway(&self, gateway: GatewayId) -> Address {
        Address { node: NodeId(gateway.node()), role: places::GATEWAYS + gateway.number() }
    }
}

/// The node that leads each partition, and its term, as far as they have said so.
#[derive(Clone, Debug, Default)]
pub struct Leaders {
    leaders: BTreeMap<PartitionId, Leader>,
    /// Nodes that cannot be reached, and since when, unless what they owe was given up. Their claims stand.
    away: BTreeMap<NodeId, Option<Micros>>,
}

#[derive(Clone, Copy, Debug)]
struct Leader {
    term: Term,
    /// The node; `None` once it has said that it leads no more, or its stream began anew.
    node: Option<NodeId>,
}

impl Leaders {
    /// Takes note of a claim; answers whether it is new. A claim of an earlier term is no news.
    pub fn note(&mut self, lead: Lead, node: NodeId) -> bool {
        let known = self.leaders.get(&lead.partition);
        if known
            .is_some_and(|known| known.term > lead.term || known.term == lead.term && known.node.is_some())
        {
            return false;
        }
        self.leaders.insert(lead.partition, Leader { term: lead.term, node: Some(node) });
        true
    }

    /// A node may lead what it led no more; answers what it led. The terms stay: none of an earlier one is heard.
    pub fn forget(&mut self, node: NodeId) -> Vec<Lead> {
        let its = self.leaders.iter_mut().filter(|(_, leader)| leader.node == Some(node));
        its.map(|(partition, leader)| {
            leader.node = None;
            Lead { partition: *partition, term: leader.term }
        })
        .collect()
    }

    /// Withdraws a claim whose maker has turned something away: it leads no more, and who does is not known.
    pub fn retract(&mut self, lead: Lead, maker: NodeId) {
        let known = self.leaders.get_mut(&lead.partition);
        if let Some(leader) = known.filter(|leader| leader.term == lead.term && leader.node == Some(maker)) {
            leader.node = None;
        }
    }

    /// The leader of a partition, with its claim.
    pub fn of(&self, partition: PartitionId) -> Option<(NodeId, Lead)> {
        let leader = self.leaders.get(&partition)?;
        Some((leader.node?, Lead { partition, term: leader.term }))
    }

    /// The leader of a partition, if it can be reached.
    pub fn reached(&self, partition: PartitionId) -> Option<(NodeId, Lead)> {
        self.of(partition).filter(|(node, _)| !self.away.contains_key(node))
    }

    /// A node cannot be reached any more.
    pub fn leave(&mut self, node: NodeId, now: Micros) {
        self.away.entry(node).or_insert(Some(now));
    }

    /// A node is reached again.
    pub fn come_back(&mut self, node: NodeId) {
        self.away.remove(&node);
    }

    /// The nodes that have been away for so long, each once.
    pub fn give_up(&mut self, now: Micros, patience: Micros) -> Vec<NodeId> {
        let is_late = |since: &mut Option<Micros>| since.take_if(|since| now.since(*since) >= patience);
        self.away.iter_mut().filter_map(|(node, since)| is_late(since).map(|_| *node)).collect()
    }

    /// True if what a node owes may have to be given up.
    pub fn misses(&self) -> bool {
        self.away.values().any(Option::is_some)
    }

    /// The latest term of a partition that is known.
    pub fn term_of(&self, partition: PartitionId) -> Term {
        self.leaders.get(&partition).map_or(Term(0), |leader| leader.term)
    }

    /// True if no later claim is known here.
    pub fn holds(&self, lead: Lead) -> bool {
        self.term_of(lead.partition) <= lead.term
    }
}

/// The appender of a partition's log.
#[derive(Clone, Debug, Default)]
pub struct Appender {
    /// The place of the last entry that was appended, or that the log has.
    last: Epoch,
    /// The highest ceiling of times that was appended, or that the log has.
    reserved: Millis,
    /// The disk is full: nothing is appended until it has space.
    is_full: bool,
}

impl Appender {
    /// Takes note of a place that is used.
    pub fn note(&mut self, place: Epoch) {
        self.last = self.last.max(place);
    }

    /// The last place that is used.
    pub const fn last(&self) -> Epoch {
        self.last
    }

    /// Takes note of a ceiling of times.
    pub fn reserve(&mut self, ceiling: Millis) {
        self.reserved = self.reserved.max(ceiling);
    }

    /// Takes note of whether the disk has space.
    pub const fn set_full(&mut self, is_full: bool) {
        self.is_full = is_full;
    }

    /// True if the disk is full.
    pub const fn is_full(&self) -> bool {
        self.is_full
    }
}

/// Accesses that leave at the end of a turn: one message a destination and chunk.
#[derive(Debug, Default)]
pub struct Departing {
    accesses: BTreeMap<(Address, Lead), Vec<Accesses>>,
}

impl Departing {
    /// Withdraws the accesses of an attempt to a participant. The end of the attempt would come before them, and their locks would stay.
    fn withdraw(&mut self, there: (Address, Lead), who: AttemptId) {
        for accesses in self.accesses.get_mut(&there).into_iter().flatten() {
            accesses.list.retain(|access| access.attempt != who);
        }
    }
}

/// See the module.
pub struct Desk<'a> {
    /// The facts of the node.
    pub site: &'a Site,
    /// The agreed state.
    pub agreed: &'a Agreed,
    /// The leaders.
    pub leaders: &'a Leaders,
    /// The views of other regions.
    pub views: &'a Views,
    /// The claim of this node, if it serves its partition.
    pub lead: Option<Lead>,
    /// The appender.
    pub appender: &'a mut Appender,
    /// Accesses that leave at the end of the turn.
    pub departing: &'a mut Departing,
    /// The counts of messages sent and entries proposed.
    pub traffic: &'a mut Traffic,
    /// No transaction sees an earlier time.
    pub clock: Millis,
    /// The latest stamp that was given or heard of here.
    pub heard: Age,
    /// The view that clients of this node have seen.
    pub known: &'a mut Known,
    /// The time.
    pub now: Now,
    /// The effects.
    pub out: &'a mut Outbox<Message>,
}

impl Desk<'_> {
    /// Appends an entry; answers its place. Its end comes as [`Log::Sealed`], `Lost` or `Rejected`.
    pub fn append(&mut self, now: Millis, content: Content) -> Epoch {
        let term = self.lead.map_or(Term(0), |lead| lead.term);
        let place = self.appender.last.next();
        self.appender.last = place;
        self.traffic.records += 1;
        match &content {
            Content::Commit(Commit { ceiling, .. }) | Content::Prepare(Prepare { ceiling, .. }) => {
                self.appender.reserve(*ceiling);
            }
            _ => {}
        }
        let entry = Entry { place, term, now, content, agreed: None };
        self.out.send(self.site.log, Log::Append(Arc::new(entry)));
        place
    }

    /// Sends something to the manager of a partition's leader, in the term that is known; answers whether there is one.
    pub fn tell_manager(&mut self, partition: PartitionId, content: Protocol) -> bool {
        let (Some(from), Some((node, to))) = (self.lead, self.leaders.of(partition)) else { return false };
        let manager = Address { node, role: self.site.manager };
        self.send(manager, Termed { from, to, content });
        true
    }

    /// Sends something to a participant, if its partition is led in this very term still; answers whether it is.
    pub fn tell_participant(&mut self, shard: usize, term: Term, content: Protocol) -> bool {
        match self.participant(shard).filter(|(_, to)| to.term == term) {
            Some((participant, to)) => {
                let Some(from) = self.lead else { return false };
                if let Protocol::Finish(who, _) = &content {
                    self.departing.withdraw((participant, to), *who);
                }
                self.send(participant, Termed { from, to, content });
                true
            }
            None => false,
        }
    }

    fn send(&mut self, to: Address, message: Termed) {
        self.traffic.messages += u64::from(to.node != self.site.node);
        self.out.send(to, message);
    }

    /// The participant that serves a shard, with its partition's claim.
    pub fn participant(&self, shard: usize) -> Option<(Address, Lead)> {
        let partition = self.site.layout.partition_of_shard(shard);
        if self.site.is_foreign(partition) {
            return Some((self.site.view(partition), self.views.of(partition)?));
        }
        let (node, lead) = self.leaders.of(partition)?;
        Some((self.site.participant(node, shard), lead))
    }

    /// Adds an access to those that leave at the end of the turn.
    pub fn access(&mut self, (to, lead): (Address, Lead), chunk: &Arc<Chunk>, access: Access) {
        let leaving = self.departing.accesses.entry((to, lead)).or_default();
        match leaving.iter_mut().find(|accesses| Arc::ptr_eq(&accesses.chunk, chunk)) {
            Some(accesses) => accesses.list.push(access),
            None => leaving.push(Accesses { chunk: chunk.clone(), list: vec![access] }),
        }
    }

    /// Sends the accesses of this turn. To another node goes the part of a chunk that is needed there.
    pub fn send_accesses(&mut self) {
        let Some(from) = self.lead else { return self.departing.accesses.clear() };
        for ((address, to), leaving) in std::mem::take(&mut self.departing.accesses) {
            for mut accesses in leaving.into_iter().filter(|accesses| !accesses.list.is_empty()) {
                if address.node != self.site.node {
                    narrow(&mut accesses);
                }
                self.send(address, Termed { from, to, content: Protocol::Access(accesses) });
            }
        }
    }

    /// The ceiling that an entry with these stamps has to raise, where they are not below one that was agreed on before (R-CEILING).
    pub fn ceiling_above(&self, bounds: Bounds) -> Millis {
        let ceiling = bounds.ceiling();
        let raises = self.site.stamps.are_chosen_late() && ceiling > self.agreed.ceiling();
        if raises { ceiling } else { Millis(0) }
    }

    /// True if nothing of an attempt's age is forgotten by the time at which the next entry is applied: else it is neither promised nor
    /// committed.
    pub fn is_remembered(&self, age: Age) -> bool {
        age >= self.site.stamps.floor(self.appender.reserved)
    }

    /// Tells the participants of this node something.
    pub fn tell_own(&mut self, message: impl Fn() -> Own) {
        for participant in self.site.own_participants() {
            self.out.send(participant, message());
        }
    }

    /// The time since the node has started.
    pub const fn elapsed(&self) -> Micros {
        self.now.elapsed
    }
}

/// Leaves of a chunk what the accesses need.
fn narrow(accesses: &mut Accesses) {
    let mut used: Vec<u32> = accesses.list.iter().map(|access| access.at).collect();
    used.sort_unstable();
    used.dedup();
    if used.len() == accesses.chunk.txns().len() {
        return;
    }
    accesses.chunk = Arc::new(accesses.chunk.part(used.iter().map(|at| *at as usize)));
    for access in &mut accesses.list {
        let at = used.binary_search(&access.at).expect("it is one of them");
        access.at = at as u32;
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::{ChunkNo, GatewayId};

    use super::*;
    use crate::bench::Bench;
    use crate::ids::TransactionId;

    #[test]
    fn a_claim_is_heard_unless_a_later_one_is_known() {
        let lead = |term| Lead { partition: PartitionId(1), term: Term(term) };
        let mut leaders = Leaders::default();
        assert_eq!((leaders.of(PartitionId(1)), leaders.holds(lead(0))), (None, true));
        assert!(leaders.note(lead(2), NodeId(4)));
        assert!(!leaders.note(lead(2), NodeId(4)), "it is no news");
        assert!(!leaders.note(lead(1), NodeId(5)));
        assert_eq!((leaders.holds(lead(1)), leaders.holds(lead(2))), (false, true));
        assert_eq!(leaders.forget(NodeId(5)), []);
        assert_eq!((leaders.forget(NodeId(4)), leaders.of(PartitionId(1))), (vec![lead(2)], None));
        assert!(!leaders.note(lead(1), NodeId(5)), "the term stays");
        assert!(leaders.note(lead(2), NodeId(4)), "it says so again after its stream began anew");
        leaders.retract(lead(1), NodeId(4));
        leaders.retract(lead(2), NodeId(5));
        assert!(leaders.of(PartitionId(1)).is_some());
        let (none, known) = (None, leaders.of(PartitionId(1)));
        leaders.leave(NodeId(4), Micros(10));
        assert_eq!((leaders.reached(PartitionId(1)), leaders.of(PartitionId(1))), (none, known));
        assert_eq!((leaders.give_up(Micros(14), Micros(5)), leaders.misses()), (vec![], true));
        assert_eq!(leaders.give_up(Micros(15), Micros(5)), [NodeId(4)]);
        assert_eq!((leaders.give_up(Micros(99), Micros(5)), leaders.misses()), (vec![], false));
        leaders.come_back(NodeId(4));
        assert_eq!(leaders.reached(PartitionId(1)), known);
        leaders.retract(lead(2), NodeId(4));
        assert_eq!(leaders.of(PartitionId(1)), None);
    }

    /// Found by a seed of wait-die on two partitions: one shard was to be asked, the leader of the next was not known, and the end of the
    /// last attempt came before its access.
    #[test]
    fn what_an_ended_attempt_was_to_ask_does_not_leave() {
        let mut at = Bench::new(0);
        let own = Lead { partition: PartitionId(0), term: Term(1) };
        at.lead = Some(own);
        at.leaders.note(own, NodeId(0));
        let who = |number| AttemptId { transaction: TransactionId { home: own, number }, attempt: 1 };
        let access = |number| Access {
            attempt: who(number),
            age: Age(1),
            at: 0,
            fragments: Vec::new(),
            inputs: Vec::new(),
            shipped: Vec::new(),
            returned: Vec::new(),
            now: Millis(1),
            seed: 1,
            step: 0,
            snapshot: crate::Snapshot::default(),
            is_last: true,
        };
        let chunk = Arc::new(Chunk::new(GatewayId::of(0, 0), ChunkNo(1)));
        let sends = at.tell(|desk| {
            let participant = desk.participant(0).unwrap();
            [1, 2].into_iter().for_each(|number| desk.access(participant, &chunk, access(number)));
            desk.tell_participant(0, own.term, Protocol::Finish(who(1), None));
            desk.send_accesses();
        });
        let numbers = sends.iter().flat_map(|(_, message)| match message {
            Message::Termed(Termed { content: Protocol::Finish(who, _), .. }) => vec![who.transaction.number],
            Message::Termed(Termed { content: Protocol::Access(accesses), .. }) => {
                accesses.list.iter().map(|access| 10 + access.attempt.transaction.number).collect()
            }
            other => panic!("{other:?}"),
        });
        assert_eq!(numbers.collect::<Vec<_>>(), [1, 12]);
    }
}
