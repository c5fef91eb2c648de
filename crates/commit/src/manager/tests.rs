//! Tests of what a manager passes on, and to whom.

use ordain_model::system::{self, READ, read_args};
use ordain_model::{
    Abort, ArgsBuilder, Backoff, Call, Cell, Chunk, ChunkNo, Db, GatewayId, Layout, OutcomeStatus,
    PartitionId, Registry, RequestNo, SessionId, Value,
};

use super::*;
use crate::entry::Commit;
use crate::ids::{AttemptId, TransactionId};

const OTHER: PartitionId = PartitionId(1);

/// A manager of the first of two partitions of two members each, and what it has sent to the manager of node 1.
struct Bench {
    manager: Manager,
    registry: Arc<Registry>,
    layout: Arc<Layout>,
}

impl Bench {
    fn new() -> Bench {
        let mut registry = Registry::default();
        system::register(&mut registry);
        let (registry, layout) = (Arc::new(registry), Arc::new(Layout::even(2, 1).unwrap()));
        let site = Site {
            node: NodeId(0),
            nodes: 2,
            partition: PartitionId(0),
            layout: layout.clone(),
            registry: registry.clone(),
            manager: 0,
            log: Address { node: NodeId(0), role: 1 },
            database: 7,
            life: 1,
            backoff: Backoff::Exponential,
            refusal: Abort::Died,
            stamps: crate::Stamps::OfTransaction,
            validates: false,
            locks_first: false,
            snapshots: crate::Snapshots::Never,
            propagation: crate::desk::Propagation::default(),
            regions: None,
            resolves: false,
            overlays: false,
            is_early: false,
            source: ordain_model::StampSource::Hybrid,
            skew: Micros(0),
            checkpoint_bytes: 0,
            bugs: ordain_role::Bugs::NONE,
        };
        let topology = Topology::replicated(layout.clone(), 2);
        Bench { manager: Manager::new(site, topology), registry, layout }
    }

    /// Has the manager handle an event; answers all that it sends.
    fn handle(&mut self, elapsed: Micros, event: Event<Message>) -> Vec<(Address, Message)> {
        let mut out = Outbox::default();
        self.manager.handle(Now { elapsed, ..Now::default() }, event, &mut out);
        self.manager.check().unwrap();
        out.sends
    }

    fn tell(&mut self, node: u16, message: impl Into<Message>) -> Vec<Message> {
        let from = Address { node: NodeId(node), role: 0 };
        let sent = self.handle(Micros(0), Event::Message { from, message: message.into() });
        let there = Address { node: NodeId(1), role: 0 };
        sent.into_iter().filter(|(to, _)| *to == there).map(|(_, message)| message).collect()
    }

    /// Lets time pass; answers how transactions of the front door have ended.
    fn pass(&mut self, elapsed: Micros) -> Vec<OutcomeStatus> {
        let sent = self.handle(elapsed, Event::Timer(TIMER));
        let ended = sent.iter().filter_map(|(_, message)| match message {
            Message::Front(Front::Outcomes(batch)) => Some(batch),
            _ => None,
        });
        ended
            .flat_map(|batch| batch.outcomes.iter().map(|outcome| outcome.status).collect::<Vec<_>>())
            .collect()
    }

    /// A write of a session that the other partition keeps.
    fn write(&self, number: u64) -> Arc<Chunk> {
        let is_of_other = |session: &SessionId| self.layout.home_partition_of(*session) == OTHER;
        let session = (1..).map(SessionId).find(is_of_other).unwrap();
        let call = Call { session: Some((session, RequestNo(1))), ..Call::new(system::COMMIT, Db(0)) };
        let mut chunk = Chunk::new(GatewayId::of(0, 0), ChunkNo(number)).in_cluster(0, self.layout.clone());
        let cell = Cell { value: Some(Value::String(b"v".to_vec())), ..Cell::ABSENT };
        let written = [(Db(0), &b"k"[..], &cell)];
        let args = |args: &mut ArgsBuilder<'_>| system::commit_args([].into_iter(), written, args);
        chunk.push(&self.registry, call, args).unwrap();
        Arc::new(chunk)
    }

    fn leads(&mut self, term: u64) -> Vec<Message> {
        self.tell(1, Message::Leads(Lead { partition: OTHER, term: Term(term) }))
    }

    /// Submits a read of the other partition.
    fn submit(&mut self, number: u64) -> Vec<Message> {
        let of_other = |key: &String| self.layout.region_of(key.as_bytes()) == OTHER;
        let key = (0..).map(|n| n.to_string()).find(of_other).unwrap();
        let mut chunk = Chunk::new(GatewayId::of(0, 0), ChunkNo(number)).in_cluster(0, self.layout.clone());
        let call = Call::new(READ, Db(0));
        chunk.push(&self.registry, call, |args| read_args([(Db(0), key.as_bytes())], args)).unwrap();
        self.tell(0, Front::Submit(Arc::new(chunk)))
    }
}

fn asked(sent: &[Message]) -> Vec<u64> {
    let under = |message: &Message| match message {
        Message::Relay(RelayMessage::Submit(lead, _)) => lead.term.0,
        other => panic!("{other:?}"),
    };
    sent.iter().map(under).collect()
}

/// Found by the simulator: what came back under a former claim took back what had been asked for under the next, and
/// nobody was asked any more.
#[test]
fn what_comes_back_under_a_former_claim_changes_nothing_about_the_next() {
    let mut bench = Bench::new();
    assert_eq!(bench.submit(0).len(), 0, "nobody leads");
    assert_eq!(asked(&bench.leads(5)), [5]);
    assert_eq!(asked(&bench.leads(6)), [6], "a read may be asked for again");
    let returned = |term| Returned {
        asked: Lead { partition: OTHER, term: Term(term) },
        gateway: GatewayId::of(0, 0),
        chunk: ChunkNo(0),
        indexes: vec![0],
    };
    assert_eq!(bench.tell(1, RelayMessage::Return(returned(5))).len(), 0);
    assert_eq!(asked(&bench.submit(1)), [6], "the claim stands");
    assert_eq!(bench.tell(1, RelayMessage::Return(returned(6))).len(), 0);
    assert_eq!(bench.submit(2).len(), 0, "and is withdrawn by who made it");
    assert_eq!(asked(&bench.leads(7)), [7, 7, 7]);
}

#[test]
fn a_claim_to_lead_counts_only_from_a_node_that_holds_the_partition() {
    let mut bench = Bench::new();
    let mut claim = |node, partition, term| {
        bench.tell(node, Message::Leads(Lead { partition: PartitionId(partition), term: Term(term) }));
        let heard = bench.manager.leaders.of(PartitionId(partition)).map(|(node, _)| node.0);
        (heard, bench.manager.strangers)
    };
    // Node 2 holds partition 0; nodes 1 and 3 hold partition 1.
    assert_eq!(claim(2, 1, 9), (None, 1));
    assert_eq!(claim(1, 7, 9), (None, 2), "there is no such partition");
    assert_eq!(claim(3, 1, 4), (Some(3), 2));
    assert_eq!(claim(2, 1, 9), (Some(3), 3));
    assert_eq!(claim(1, 1, 5), (Some(1), 3));
}

/// A leader that was asked and cannot be reached may have committed: only what nobody was asked for had no effect.
#[test]
fn what_a_lost_leader_was_asked_for_ends_unknown_and_what_nobody_was_asked_for_busy() {
    let mut bench = Bench::new();
    let _ = bench.leads(5);
    let asked = bench.write(0);
    assert_eq!(bench.tell(0, Front::Submit(asked)).len(), 1);
    let lost = PeerChange { node: NodeId(1), state: PeerState::Lost };
    let _ = bench.tell(0, lost);
    let unasked = bench.write(1);
    assert_eq!(bench.tell(0, Front::Submit(unasked)).len(), 0, "it cannot be reached");
    assert_eq!(bench.pass(AWAY_FOR), []);
    let ends = bench.pass(Micros::from_millis(5_001));
    assert_eq!(ends, [OutcomeStatus::Unknown, OutcomeStatus::Busy]);
}

/// A peer cannot have seen decisions that this partition's leader has not made: with such a number no transaction of this home could be decided.
#[test]
fn a_view_with_decisions_that_this_home_has_not_made_is_not_heeded() {
    let mut bench = Bench::new();
    let own = PartitionId(0);
    bench.manager.lead = Some(Lead { partition: own, term: Term(1) });
    bench.manager.appender.note(Epoch(9));
    let mut seen = |partition, number| {
        let view = View::of(crate::Seen::NOTHING).decided(PartitionId(partition), number);
        bench.tell(1, RelayMessage::Heard(Age(0), view));
        bench.manager.known.seen().vector.of(PartitionId(partition))
    };
    assert_eq!((seen(0, 9), seen(0, 10), seen(0, u64::MAX)), (9, 9, 9));
    assert_eq!((seen(1, 40), seen(7, 1)), (40, 0), "there is no such partition");
}

/// A retry of a request may be answered from the log by a node that has just begun to lead: what its client follows then is what the log holds.
#[test]
fn who_begins_to_lead_knows_what_its_log_was_answered_for() {
    let mut bench = Bench::new();
    bench.manager.site.snapshots = Snapshots::AtBegin;
    let lead = Lead { partition: PartitionId(0), term: Term(1) };
    let attempt = AttemptId { transaction: TransactionId { home: lead, number: 1 }, attempt: 1 };
    let commit = Commit { attempt, view: View::of(crate::Seen::NOTHING), ..Commit::default() };
    for (place, content) in [(1, Content::Begin), (2, Content::Commit(commit))] {
        let entry = Entry { place: Epoch(place), term: Term(1), now: Millis(0), content, agreed: None };
        bench.manager.replay(&Arc::new(entry)).unwrap();
    }
    assert_eq!(bench.manager.known.seen().vector, crate::Vector::NOTHING, "nobody was told by this node");
    let next = Lead { term: Term(2), ..lead };
    bench.manager.begins = Some(Beginning { lead: next, missing: 1 });
    bench.manager.ready(next.term, Now::default(), &mut Outbox::default());
    assert_eq!(bench.manager.known.seen().vector.of(lead.partition), 2);
}

/// A token is no transaction: the client's node answers it, whoever leads or not, and what came with it goes its way.
#[test]
fn the_node_itself_hands_out_tokens_and_passes_on_what_came_with_them() {
    let mut bench = Bench::new();
    let _ = bench.leads(5);
    let of_other = |key: &String| bench.layout.region_of(key.as_bytes()) == OTHER;
    let key = (0..).map(|n| n.to_string()).find(of_other).unwrap();
    let mut chunk = Chunk::new(GatewayId::of(0, 0), ChunkNo(0)).in_cluster(0, bench.layout.clone());
    chunk.push(&bench.registry, Call::new(system::SEEN, Db(0)), |_| {}).unwrap();
    let alone = Arc::new(chunk.clone());
    chunk
        .push(&bench.registry, Call::new(READ, Db(0)), |args| read_args([(Db(0), key.as_bytes())], args))
        .unwrap();
    for (chunk, passed_on) in [(alone, 0), (Arc::new(chunk), 1)] {
        let from = Address { node: NodeId(0), role: 0 };
        let sent = bench.handle(Micros(0), Event::Message { from, message: Front::Submit(chunk).into() });
        let answers = sent.iter().filter_map(|(_, message)| match message {
            Message::Front(Front::Outcomes(batch)) => {
                Some(batch.outcomes.iter().map(|outcome| outcome.index))
            }
            _ => None,
        });
        assert_eq!(answers.flatten().collect::<Vec<_>>(), [0]);
        let submitted = sent.iter().filter_map(|(_, message)| match message {
            Message::Relay(RelayMessage::Submit(_, chunk)) => Some(chunk.txns()[0].call.procedure),
            _ => None,
        });
        assert_eq!(submitted.collect::<Vec<_>>(), vec![READ; passed_on]);
        assert_eq!(bench.manager.relay.open(), passed_on);
    }
}

/// A word about a home counts if a member of that has sent it.
#[test]
fn only_members_of_a_home_say_how_far_it_is() {
    let mut bench = Bench::new();
    let _ = bench.leads(5);
    bench.manager.site.snapshots = Snapshots::AtBegin;
    let view = View::of(crate::Seen::NOTHING).decided(OTHER, 41);
    let word = crate::token::write(view.seen(), bench.manager.site.database).unwrap();
    let mut chunk = Chunk::new(GatewayId::of(0, 0), ChunkNo(0)).in_cluster(0, bench.layout.clone());
    chunk.push(&bench.registry, Call::new(system::SEEN, Db(0)), |args| _ = args.push(&word)).unwrap();
    let asked = bench.tell(0, Front::Submit(Arc::new(chunk)));
    let question = match &asked[..] {
        [Message::Relay(RelayMessage::Attest(question))] => question.question,
        other => panic!("{other:?}"),
    };
    let mut number_after = |node| {
        let readers = Some(crate::Anti::default());
        let answer = crate::Attested { question, home: OTHER, number: 41, decided: 41, readers };
        bench.tell(node, RelayMessage::Attested(answer));
        (bench.manager.known.seen().vector.of(OTHER), bench.manager.strangers)
    };
    assert_eq!((number_after(2), number_after(3)), ((0, 1), (41, 1)));
}
