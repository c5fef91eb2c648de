//! What candidates conclude, and what configuration entries make of the leadership records. Whole configuration services run in the simulator.

use ordain_model::{
    Call, Cell, Chunk, ChunkNo, Db, GatewayId, Gsn, KeyHash, Layout, Layouts, Millis, Placed, Value, system,
};
use proptest::prelude::*;

use super::succession::{Conclusion, Knowledge};
use super::*;
use crate::message::Held;

const LOG: u16 = 1;
const EXCHANGE: u16 = 2;

/// Three partitions on two replicas: nodes 0 to 2 and 3 to 5.
fn topology() -> Topology {
    Topology { layout: Arc::new(Layout::even(3, 1).unwrap()), replicas: 2 }
}

fn procedures() -> Arc<Registry> {
    let mut registry = Registry::default();
    system::register(&mut registry);
    Arc::new(registry)
}

fn at(node: u16, role: u16) -> Address {
    Address { node: NodeId(node), role }
}

fn key_of(partition: u16) -> Vec<u8> {
    let layout = Layout::even(3, 1).unwrap();
    let is_there = |key: &Vec<u8>| layout.partition_of(KeyHash::of(key).slot()) == PartitionId(partition);
    (0u32..).map(|n| n.to_le_bytes().to_vec()).find(is_there).unwrap()
}

/// A batch of partition 0 in two chunks, each transaction of which writes in some partitions.
fn batch(epoch: u64, txns: &[&[u16]]) -> Batch {
    let cell = Cell { value: Some(Value::String(b"v".to_vec())), expires_at: Millis(0).into() };
    let mut batch = Batch { epoch: Epoch(epoch), layout: 1, now: Millis(7), ..Batch::default() };
    for (number, txns) in txns.chunks(2).enumerate() {
        let mut chunk = Chunk::new(GatewayId(number as u32), ChunkNo(epoch));
        for partitions in txns {
            let keys: Vec<Vec<u8>> = partitions.iter().map(|p| key_of(*p)).collect();
            let writes = keys.iter().map(|key| (Db(0), &key[..], &cell));
            let call = Call::new(system::COMMIT, Db(0));
            chunk
                .push(&procedures(), call, |args| system::commit_args([].into_iter(), writes, args))
                .unwrap();
        }
        let base = batch.total;
        batch.total += chunk.span();
        batch.chunks.push(Placed::whole(base, Arc::new(chunk)));
    }
    batch
}

fn slice(batch: &Batch, partition: u16) -> Held {
    let content =
        batch.encode_slice(PartitionId(partition), &mut Layouts::new(topology().layout)).map(Arc::new);
    Held { epoch: batch.epoch, logged: batch.count_logged(), content }
}

fn whole(batch: &Batch) -> Held {
    Held { epoch: batch.epoch, logged: batch.count_logged(), content: Some(Arc::new(batch.encode())) }
}

fn gsns(batch: &Batch) -> Vec<(Gsn, Vec<u8>)> {
    batch.txns().map(|(gsn, chunk, txn)| (gsn, chunk.record(txn).to_vec())).collect()
}

/// Node 3 is to follow node 0, which does not answer, and has everything up to epoch 4.
fn succession() -> Succession {
    let others =
        [at(0, LOG), at(0, EXCHANGE), at(1, EXCHANGE), at(2, EXCHANGE), at(3, EXCHANGE), at(4, EXCHANGE)];
    let mut succession =
        Succession::new((PartitionId(0), 2), others.into_iter().chain([at(5, EXCHANGE)]), Micros(0));
    assert!(succession.questions().is_empty(), "it does not know yet what it has itself");
    succession.begin(Epoch(4));
    assert_eq!(succession.questions().len(), 7);
    succession
}

fn hear(succession: &mut Succession, node: u16, through: u64, evidence: u64, held: Vec<Held>) {
    hear_since(succession, node, [0, through, evidence], held);
}

/// The same of one that does not know of everything.
fn hear_since(succession: &mut Succession, node: u16, knows: [u64; 3], held: Vec<Held>) {
    let [since, through, evidence] = knows.map(Epoch);
    let from = (at(node, EXCHANGE), false, Micros(5));
    assert!(!succession.hear(from, Knowledge { since, through, evidence }, held, true));
}

fn nodes(of: &Conclusion) -> (Vec<u16>, Vec<u16>) {
    let (absent, stained) = (of.absent.iter().map(|n| n.0), of.stained.iter().map(|r| r.0));
    (absent.collect(), stained.collect())
}

#[test]
fn a_candidate_waits_for_what_its_own_node_knows() {
    let mut succession = succession();
    assert!(!succession.has_heard(NodeId(3)), "its own exchange has not answered");
    hear(&mut succession, 3, 4, 0, Vec::new());
    assert!(succession.has_heard(NodeId(3)) && !succession.has_heard(NodeId(0)));
}

#[test]
fn slices_that_make_a_whole_batch_decide_it() {
    let mut succession = succession();
    let (six, eight) = (batch(6, &[&[0, 1], &[0, 2], &[0, 1, 2]]), batch(8, &[&[0, 1]]));
    hear(&mut succession, 1, 9, 8, vec![slice(&six, 1), slice(&eight, 1)]);
    hear(&mut succession, 2, 9, 0, vec![slice(&six, 2), slice(&eight, 2)]);
    [3, 4, 5].into_iter().for_each(|node| hear(&mut succession, node, 4, 0, Vec::new()));
    assert!(!succession.is_heard_out());
    let conclusion = succession.conclude(&topology(), &procedures()).unwrap();
    let restored: Vec<Batch> =
        conclusion.batches.iter().map(|bytes| Batch::decode(&procedures(), bytes).unwrap()).collect();
    assert_eq!(restored.iter().map(gsns).collect::<Vec<_>>(), [gsns(&six), gsns(&eight)]);
    assert_eq!((conclusion.end, conclusion.first), (Epoch(8), Epoch(10)));
    assert_eq!(nodes(conclusion), (vec![0], vec![]));
}

/// Scenario 11 of calvin.md, section 8, second half: a transaction of the dead node alone is lost, and another whose
/// effect may rest on it had already gone to a survivor.
#[test]
fn what_only_the_dead_node_knew_ends_what_is_decided() {
    let mut succession = succession();
    let (five, six, seven) = (batch(5, &[&[0, 1]]), batch(6, &[&[0, 1], &[0]]), batch(7, &[&[0, 2]]));
    hear(&mut succession, 1, 7, 0, vec![slice(&five, 1), slice(&six, 1), slice(&seven, 1)]);
    hear(&mut succession, 2, 5, 0, vec![slice(&five, 2)]);
    [3, 4, 5].into_iter().for_each(|node| hear(&mut succession, node, 4, 0, Vec::new()));
    let conclusion = succession.conclude(&topology(), &procedures()).unwrap();
    assert_eq!((conclusion.batches.len(), conclusion.end, conclusion.first), (1, Epoch(5), Epoch(8)));
    assert_eq!(nodes(conclusion), (vec![0], vec![0]), "node 1 may have executed what is lost");
}

/// Who began with a checkpoint and has lost what came in before cannot tell an epoch that was empty from one that was not.
#[test]
fn an_epoch_of_which_nobody_knows_whether_it_was_empty_ends_what_is_decided() {
    let (six, eight) = (batch(6, &[&[0, 1], &[0, 2]]), batch(8, &[&[0, 1]]));
    // Node 2 knows of nothing up to epoch 7. Node 1 knows all, or nothing up to epoch 5, which is beyond what is decided.
    for (since, end, batches, stained) in [(0, 8, 2, vec![]), (5, 4, 0, vec![0])] {
        let mut succession = succession();
        hear_since(&mut succession, 2, [7, 9, 0], vec![slice(&eight, 2)]);
        hear_since(&mut succession, 1, [since, 9, 0], vec![slice(&six, 1), slice(&eight, 1)]);
        [4, 5].into_iter().for_each(|node| hear(&mut succession, node, 4, 0, Vec::new()));
        hear(&mut succession, 3, 4, 0, vec![slice(&six, 2)]);
        let conclusion = succession.conclude(&topology(), &procedures()).unwrap();
        assert_eq!((conclusion.end, conclusion.batches.len()), (Epoch(end), batches));
        assert_eq!((nodes(conclusion).1, conclusion.first), (stained, Epoch(10)));
    }
}

#[test]
fn a_member_that_has_a_batch_whole_makes_slices_needless() {
    let mut succession = succession();
    let six = batch(6, &[&[0, 1], &[0]]);
    hear(&mut succession, 1, 6, 0, vec![slice(&six, 1)]);
    let from = (at(0, LOG), true, Micros(5));
    let knows = Knowledge { through: Epoch(6), ..Knowledge::default() };
    assert!(succession.hear(from, knows, vec![whole(&six)], false), "it has more to say");
    assert_eq!(succession.questions()[0], (at(0, LOG), Epoch(6)));
    assert!(!succession.hear(from, knows, Vec::new(), true));
    [0, 2, 3, 4, 5].into_iter().for_each(|node| hear(&mut succession, node, 4, 0, Vec::new()));
    assert!(succession.is_heard_out());
    let conclusion = succession.conclude(&topology(), &procedures()).unwrap();
    assert_eq!((conclusion.end, conclusion.first), (Epoch(6), Epoch(7)));
    assert_eq!(nodes(conclusion), (vec![], vec![]));
}

#[test]
fn evidence_of_what_nobody_knows_makes_a_replica_start_over() {
    let mut succession = succession();
    hear(&mut succession, 1, 5, 0, Vec::new());
    // Somebody who has executed something of epoch 9 told node 2 about it, and does not answer.
    hear(&mut succession, 2, 5, 9, Vec::new());
    [3, 5].into_iter().for_each(|node| hear(&mut succession, node, 4, 0, Vec::new()));
    let conclusion = succession.conclude(&topology(), &procedures()).unwrap();
    assert_eq!((conclusion.end, conclusion.first), (Epoch(4), Epoch(10)));
    assert_eq!(nodes(conclusion), (vec![0, 4], vec![0]));
}

fn report(through: u64, in_sync: &[u16]) -> Report {
    let in_sync = in_sync.iter().map(|node| NodeId(*node)).collect();
    let kept = Kept { through: Epoch(through), in_sync };
    let arrival = Arrival { incarnation: 0, life: 1 };
    Report { at: Micros(0), arrival, version: 0, kept, conclusion: None }
}

/// Of whoever leads, with these reports of the primary of partition 0 and of its member, which was taken off the list.
fn chair(of_primary: Report, of_member: Report) -> Chair {
    let mut leadership_records = LeadershipRecords::new(&topology());
    leadership_records.apply(&ConfigurationEntry::Sync {
        partition: PartitionId(0),
        term: 1,
        in_sync: vec![],
    });
    for node in 0..6 {
        let arrival = Arrival { incarnation: 0, life: 1 };
        leadership_records.apply(&ConfigurationEntry::Arrive { node: NodeId(node), arrival });
    }
    leadership_records.version = 0;
    Chair {
        registry: registry(),
        pace: Micros(1),
        leadership_records,
        leads: true,
        last: Epoch(0),
        is_open: false,
        since: Micros(0),
        reports: [(NodeId(0), of_primary), (NodeId(3), of_member)].into(),
        joining: BTreeMap::new(),
        fenced: BTreeMap::new(),
    }
}

#[test]
fn a_member_counts_for_what_is_safe_from_its_primaries_word_on() {
    for (of_primary, safe) in [(report(9, &[]), 9), (report(9, &[3]), 4)] {
        assert_eq!(chair(of_primary, report(4, &[])).safe(&topology(), PartitionId(0)), Epoch(safe));
    }
}

#[test]
fn a_member_is_an_heir_once_it_has_all_that_may_be_safe_without_it() {
    let partition = PartitionId(0);
    let mut chair = chair(report(9, &[]), report(4, &[]));
    let hear = |chair: &mut Chair, node, report| {
        chair.reports.insert(NodeId(node), report);
        chair.note_joining(NodeId(node));
        match chair.next_for(partition, &topology(), Micros(0)) {
            None => None,
            Some(ConfigurationEntry::Sync { in_sync, .. }) => Some(in_sync),
            other => panic!("{other:?}"),
        }
    };
    // Up to 9 was safe without the member. What is sealed after that is not, before the member has it too.
    assert_eq!(hear(&mut chair, 0, report(9, &[3])), None);
    assert_eq!(hear(&mut chair, 0, report(20, &[3])), None);
    assert_eq!(hear(&mut chair, 3, report(8, &[])), None);
    // What an earlier life of it has said may be gone with its log.
    let earlier = Report { arrival: Arrival { incarnation: 0, life: 0 }, ..report(30, &[]) };
    assert_eq!(hear(&mut chair, 3, earlier), None);
    assert_eq!(hear(&mut chair, 3, report(9, &[])), Some(vec![NodeId(3)]));
    // If the primary does not name it any more, and then again, it is as at first.
    assert_eq!(hear(&mut chair, 0, report(20, &[])), None);
    assert_eq!(hear(&mut chair, 0, report(20, &[3])), None);
    assert_eq!(hear(&mut chair, 3, report(20, &[])), Some(vec![NodeId(3)]));
}

#[test]
fn configuration_entries_make_leadership_records_in_their_order() {
    let mut leadership_records = LeadershipRecords::new(&topology());
    let partition = PartitionId(0);
    assert_eq!(
        (leadership_records.of(partition).primary, &leadership_records.of(partition).in_sync[..]),
        (NodeId(0), &[NodeId(3)][..])
    );
    let arrive = |incarnation, life| ConfigurationEntry::Arrive {
        node: NodeId(0),
        arrival: Arrival { incarnation, life },
    };
    let eviction = Eviction { incarnation: 0, without_log: true };
    let leadership_record = |term| ConfigurationEntry::LeadershipRecord {
        partition,
        term,
        end: Epoch(4),
        first: Epoch(9),
        evicted: vec![(NodeId(0), eviction), (NodeId(1), Eviction { incarnation: 0, without_log: false })],
    };
    let fence = |term| ConfigurationEntry::Fence { partition, fence: Fence { term, candidate: NodeId(3) } };
    for configuration_entry in [
        arrive(0, 5),
        leadership_record(2),
        fence(2),
        fence(2),
        ConfigurationEntry::Sync { partition, term: 1, in_sync: vec![] },
    ] {
        leadership_records.apply(&configuration_entry);
        let batch = configuration_entry.to_batch(&registry(), Epoch(1)).unwrap();
        let batch = Batch::decode(&registry(), &batch.encode()).unwrap();
        assert_eq!(ConfigurationEntry::of_batch(&batch), Some(vec![configuration_entry]));
    }
    assert!(leadership_records.is_fenced() && leadership_records.of(partition).primary == NodeId(0));
    assert_eq!(leadership_records.of(partition).in_sync, [NodeId(3)], "while a term is prepared that stays");
    leadership_records.apply(&leadership_record(2));
    let now = leadership_records.of(partition);
    assert_eq!((now.term, now.primary, now.first, now.fence), (2, NodeId(3), Epoch(9), None));
    assert!(
        now.in_sync.is_empty()
            && leadership_records.is_out(NodeId(0))
            && leadership_records.is_out(NodeId(1))
    );
    assert_eq!(leadership_records.eviction(NodeId(0), 0), Some(eviction));
    // It may be in its next incarnation by now, with a log that was not known to be wrong when it began that.
    assert_eq!(
        (
            leadership_records.last_incarnation_of(NodeId(0)),
            leadership_records.last_incarnation_of(NodeId(2))
        ),
        (1, 0)
    );
    let stained = Eviction { incarnation: 1, without_log: false };
    let evicted = vec![(NodeId(0), stained), (NodeId(2), stained)];
    leadership_records.apply(&fence(3));
    leadership_records.apply(&ConfigurationEntry::LeadershipRecord {
        partition,
        term: 3,
        end: Epoch(11),
        first: Epoch(12),
        evicted,
    });
    assert_eq!(
        leadership_records.eviction(NodeId(0), 0),
        Some(Eviction { incarnation: 1, without_log: true })
    );
    assert_eq!(leadership_records.eviction(NodeId(2), 1), Some(stained));
    leadership_records.apply(&arrive(2, 6));
    assert!(!leadership_records.is_out(NodeId(0)));
    // Somebody of an earlier life is late.
    leadership_records.apply(&arrive(0, 5));
    assert_eq!(leadership_records.arrivals[&NodeId(0)], Arrival { incarnation: 2, life: 6 });
    let mut bytes = Vec::new();
    leadership_records.encode(&mut bytes);
    assert_eq!(LeadershipRecords::decode(&mut Reader(&bytes)), Some(leadership_records));
    assert!((0..bytes.len()).all(|cut| LeadershipRecords::decode(&mut Reader(&bytes[..cut])).is_none()));
}

proptest! {
    #[test]
    fn slices_make_the_whole_if_every_transaction_is_in_one(
        txns in proptest::collection::vec(proptest::sample::subsequence(vec![0u16, 1, 2], 1..=3), 1..8),
        asked in proptest::sample::subsequence(vec![0u16, 1, 2], 1..=3),
    ) {
        let txns: Vec<&[u16]> = txns.iter().map(|txn| &txn[..]).collect();
        let batch = batch(3, &txns);
        let slices: Vec<Arc<Vec<u8>>> = asked.iter().filter_map(|p| slice(&batch, *p).content).collect();
        // The collector's partition takes part too, so what is in a slice is asked of the slices.
        let layout = topology().layout;
        let is_there = |(_, chunk, txn): &(Gsn, &Arc<Chunk>, &ordain_model::Txn)| {
            asked.iter().any(|p| chunk.participants(txn, &layout).contains(PartitionId(*p)))
        };
        let there: Vec<(Gsn, Vec<u8>)> =
            batch.txns().filter(is_there).map(|(gsn, chunk, txn)| (gsn, chunk.record(txn).to_vec())).collect();
        if slices.is_empty() {
            prop_assert!(Batch::merge(&procedures(), &slices).is_err());
        } else {
            let merged = Batch::merge(&procedures(), &slices).unwrap();
            prop_assert_eq!(gsns(&merged), there);
            prop_assert_eq!((merged.total, merged.now), (batch.total, batch.now));
            let again = Batch::decode(&procedures(), &merged.encode()).unwrap();
            prop_assert_eq!(gsns(&again), gsns(&merged));
        }
    }
}
