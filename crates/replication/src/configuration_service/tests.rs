//! What candidates conclude, and what configuration entries make of the leadership records. Whole configuration services run in the simulator.

use ordain_model::Layout;
use ordain_model::wire::{Codec, Reader};
use ordain_role::Bugs;

use super::succession::{Conclusion, Knowledge};
use super::*;
use crate::message::Held;

const LOG: u16 = 1;
const EXCHANGE: u16 = 2;

/// Three partitions on two replicas: nodes 0 to 2 and 3 to 5.
fn topology() -> Topology {
    Topology::replicated(Arc::new(Layout::even(3, 1).unwrap()), 2)
}

fn at(node: u16, role: u16) -> Address {
    Address { node: NodeId(node), role }
}

/// An entry of which every part goes to some partitions, by the part's number.
#[derive(Clone, Debug, PartialEq)]
struct Divided {
    epoch: Epoch,
    parts: BTreeMap<u32, Vec<u16>>,
}

/// The entry type of a log of such entries.
#[derive(Debug)]
enum DividedEntries {}

impl EntryType for DividedEntries {
    type Entry = Divided;
    type Context = ();

    fn epoch(entry: &Divided) -> Epoch {
        entry.epoch
    }

    fn must_be_durable(_entry: &Divided) -> bool {
        true
    }

    fn encode(entry: &Divided) -> Vec<u8> {
        let mut out = Vec::new();
        entry.epoch.encode(&mut out);
        for (number, partitions) in &entry.parts {
            number.encode(&mut out);
            partitions.encode(&mut out);
        }
        out
    }

    fn decode(_context: &(), bytes: &[u8]) -> Result<Divided, String> {
        let mut bytes = Reader::new(bytes);
        let mut parse = || {
            let epoch = Epoch::decode(&mut bytes)?;
            let mut parts = BTreeMap::new();
            while !bytes.is_empty() {
                let (number, partitions) = Codec::decode(&mut bytes)?;
                parts.insert(number, partitions);
            }
            Some(Divided { epoch, parts })
        };
        parse().ok_or_else(|| "it is no such entry".to_owned())
    }

    fn count_parts(entry: &Divided) -> u32 {
        entry.parts.len() as u32
    }

    fn merge(_context: &(), shares: &[Arc<Vec<u8>>], parts: u32) -> Option<Vec<u8>> {
        let mut shares = shares.iter().filter_map(|share| DividedEntries::decode(&(), share).ok());
        let mut merged = shares.next()?;
        shares.for_each(|share| merged.parts.extend(share.parts));
        (DividedEntries::count_parts(&merged) == parts).then(|| DividedEntries::encode(&merged))
    }
}

/// An entry each part of which goes to some partitions.
fn entry(epoch: u64, parts: &[&[u16]]) -> Divided {
    let parts = (0..).zip(parts.iter().map(|partitions| partitions.to_vec())).collect();
    Divided { epoch: Epoch(epoch), parts }
}

fn held(entry: &Divided, share: &Divided) -> Held {
    let content = (!share.parts.is_empty()).then(|| Arc::new(DividedEntries::encode(share)));
    Held { epoch: entry.epoch, parts: DividedEntries::count_parts(entry), content }
}

fn slice(entry: &Divided, partition: u16) -> Held {
    let mut share = entry.clone();
    share.parts.retain(|_, partitions| partitions.contains(&partition));
    held(entry, &share)
}

fn whole(entry: &Divided) -> Held {
    held(entry, entry)
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

fn hear(succession: &mut Succession, node: u16, through: u64, executed: u64, held: Vec<Held>) {
    hear_since(succession, node, [0, through, executed], held);
}

/// The same of one that does not know of everything.
fn hear_since(succession: &mut Succession, node: u16, knows: [u64; 3], held: Vec<Held>) {
    let [since, through, executed] = knows.map(Epoch);
    let from = (at(node, EXCHANGE), false, Micros(5));
    assert!(!succession.take_answer(from, Knowledge { since, through, executed }, held, true));
}

fn nodes(of: &Conclusion) -> (Vec<u16>, Vec<u16>) {
    let (absent, suspects) = (of.absent.iter().map(|n| n.0), of.suspects.iter().map(|r| r.0));
    (absent.collect(), suspects.collect())
}

#[test]
fn a_candidate_waits_for_what_its_own_node_knows() {
    let mut succession = succession();
    assert!(!succession.has_answer_of(NodeId(3)), "its own exchange has not answered");
    hear(&mut succession, 3, 4, 0, Vec::new());
    assert!(succession.has_answer_of(NodeId(3)) && !succession.has_answer_of(NodeId(0)));
}

#[test]
fn slices_that_make_a_whole_batch_decide_it() {
    let mut succession = succession();
    let (six, eight) = (entry(6, &[&[0, 1], &[0, 2], &[0, 1, 2]]), entry(8, &[&[0, 1]]));
    hear(&mut succession, 1, 9, 8, vec![slice(&six, 1), slice(&eight, 1)]);
    hear(&mut succession, 2, 9, 0, vec![slice(&six, 2), slice(&eight, 2)]);
    [3, 4, 5].into_iter().for_each(|node| hear(&mut succession, node, 4, 0, Vec::new()));
    assert!(!succession.has_all_answers());
    let conclusion = succession.conclude::<DividedEntries>(&topology(), &()).unwrap();
    let restored = conclusion.entries.iter().map(|bytes| DividedEntries::decode(&(), bytes).unwrap());
    assert_eq!(restored.collect::<Vec<_>>(), [six, eight]);
    assert_eq!((conclusion.end, conclusion.first), (Epoch(8), Epoch(10)));
    assert_eq!(nodes(conclusion), (vec![0], vec![]));
}

/// Scenario 11 of docs/protocols/calvin.md, section 6, second half: a transaction of the dead node alone is lost, and another whose
/// effect may rest on it had already gone to a survivor.
#[test]
fn what_only_the_dead_node_knew_ends_what_is_decided() {
    let mut succession = succession();
    let (five, six, seven) = (entry(5, &[&[0, 1]]), entry(6, &[&[0, 1], &[0]]), entry(7, &[&[0, 2]]));
    hear(&mut succession, 1, 7, 0, vec![slice(&five, 1), slice(&six, 1), slice(&seven, 1)]);
    hear(&mut succession, 2, 5, 0, vec![slice(&five, 2)]);
    [3, 4, 5].into_iter().for_each(|node| hear(&mut succession, node, 4, 0, Vec::new()));
    let conclusion = succession.conclude::<DividedEntries>(&topology(), &()).unwrap();
    assert_eq!((conclusion.entries.len(), conclusion.end, conclusion.first), (1, Epoch(5), Epoch(8)));
    assert_eq!(nodes(conclusion), (vec![0], vec![0]), "node 1 may have executed what is lost");
}

/// Who began with a checkpoint and has lost what came in before cannot tell an epoch that was empty from one that was not.
#[test]
fn an_epoch_of_which_nobody_knows_whether_it_was_empty_ends_what_is_decided() {
    let (six, eight) = (entry(6, &[&[0, 1], &[0, 2]]), entry(8, &[&[0, 1]]));
    // Node 2 knows of nothing up to epoch 7. Node 1 knows all, or nothing up to epoch 5, which is beyond what is decided.
    for (since, end, entries, suspects) in [(0, 8, 2, vec![]), (5, 4, 0, vec![0])] {
        let mut succession = succession();
        hear_since(&mut succession, 2, [7, 9, 0], vec![slice(&eight, 2)]);
        hear_since(&mut succession, 1, [since, 9, 0], vec![slice(&six, 1), slice(&eight, 1)]);
        [4, 5].into_iter().for_each(|node| hear(&mut succession, node, 4, 0, Vec::new()));
        hear(&mut succession, 3, 4, 0, vec![slice(&six, 2)]);
        let conclusion = succession.conclude::<DividedEntries>(&topology(), &()).unwrap();
        assert_eq!((conclusion.end, conclusion.entries.len()), (Epoch(end), entries));
        assert_eq!((nodes(conclusion).1, conclusion.first), (suspects, Epoch(10)));
    }
}

#[test]
fn a_member_that_has_a_batch_whole_makes_slices_needless() {
    let mut succession = succession();
    let six = entry(6, &[&[0, 1], &[0]]);
    hear(&mut succession, 1, 6, 0, vec![slice(&six, 1)]);
    let from = (at(0, LOG), true, Micros(5));
    let knows = Knowledge { through: Epoch(6), ..Knowledge::default() };
    assert!(succession.take_answer(from, knows, vec![whole(&six)], false), "it has more to say");
    assert_eq!(succession.questions()[0], (at(0, LOG), Epoch(6)));
    assert!(!succession.take_answer(from, knows, Vec::new(), true));
    [0, 2, 3, 4, 5].into_iter().for_each(|node| hear(&mut succession, node, 4, 0, Vec::new()));
    assert!(succession.has_all_answers());
    let conclusion = succession.conclude::<DividedEntries>(&topology(), &()).unwrap();
    assert_eq!((conclusion.end, conclusion.first), (Epoch(6), Epoch(7)));
    assert_eq!(nodes(conclusion), (vec![], vec![]));
}

#[test]
fn execution_of_what_nobody_knows_has_a_replica_rebuilt() {
    let mut succession = succession();
    hear(&mut succession, 1, 5, 0, Vec::new());
    // Somebody who has executed something of epoch 9 told node 2 about it, and does not answer.
    hear(&mut succession, 2, 5, 9, Vec::new());
    [3, 5].into_iter().for_each(|node| hear(&mut succession, node, 4, 0, Vec::new()));
    let conclusion = succession.conclude::<DividedEntries>(&topology(), &()).unwrap();
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
fn decider(of_primary: Report, of_member: Report) -> Decider {
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
    Decider {
        pace: Micros(1),
        leadership_records,
        leads: true,
        last: Epoch(0),
        is_open: false,
        since: Micros(0),
        earlier_lives: BTreeSet::new(),
        reports: [(NodeId(0), of_primary), (NodeId(3), of_member)].into(),
        joining: BTreeMap::new(),
        fenced: BTreeMap::new(),
    }
}

#[test]
fn a_member_counts_for_what_is_safe_from_its_primaries_word_on() {
    for (of_primary, safe) in [(report(9, &[]), 9), (report(9, &[3]), 4)] {
        assert_eq!(
            decider(of_primary, report(4, &[])).low_watermark(&topology(), PartitionId(0), Bugs::NONE),
            Epoch(safe)
        );
    }
}

#[test]
fn a_life_that_is_over_does_not_arrive_again() {
    let mut decider = decider(report(9, &[]), report(4, &[]));
    let next = |decider: &Decider| decider.next_configuration_entry(&topology(), Micros(0));
    assert_eq!(next(&decider), None);
    let of = |incarnation, life| Report { arrival: Arrival { incarnation, life }, ..report(9, &[]) };
    // The number of a later life may be smaller: it is a time of a clock that may go back.
    for later in [of(0, 7), of(0, 3)] {
        decider.reports.insert(NodeId(3), later.clone());
        let arrive = ConfigurationEntry::Arrive { node: NodeId(3), arrival: later.arrival };
        assert_eq!(next(&decider), Some(arrive.clone()));
        decider.apply(&arrive);
        assert_eq!(next(&decider), None);
    }
    for earlier in [of(0, 1), of(0, 7)] {
        decider.reports.insert(NodeId(3), earlier);
        assert_eq!(next(&decider), None, "a report that comes late");
    }
}

#[test]
fn a_member_is_an_heir_once_it_has_all_that_may_be_safe_without_it() {
    let partition = PartitionId(0);
    let mut decider = decider(report(9, &[]), report(4, &[]));
    let hear = |decider: &mut Decider, node, report| {
        decider.reports.insert(NodeId(node), report);
        decider.note_joining(NodeId(node));
        match decider.next_for(partition, &topology(), Micros(0)) {
            None => None,
            Some(ConfigurationEntry::Sync { in_sync, .. }) => Some(in_sync),
            other => panic!("{other:?}"),
        }
    };
    // Up to 9 was safe without the member. What is sealed after that is not, before the member has it too.
    assert_eq!(hear(&mut decider, 0, report(9, &[3])), None);
    assert_eq!(hear(&mut decider, 0, report(20, &[3])), None);
    assert_eq!(hear(&mut decider, 3, report(8, &[])), None);
    // What an earlier life of it has said may be gone with its log.
    let earlier = Report { arrival: Arrival { incarnation: 0, life: 0 }, ..report(30, &[]) };
    assert_eq!(hear(&mut decider, 3, earlier), None);
    assert_eq!(hear(&mut decider, 3, report(9, &[])), Some(vec![NodeId(3)]));
    // If the primary does not name it any more, and then again, it is as at first.
    assert_eq!(hear(&mut decider, 0, report(20, &[])), None);
    assert_eq!(hear(&mut decider, 0, report(20, &[3])), None);
    assert_eq!(hear(&mut decider, 3, report(20, &[])), Some(vec![NodeId(3)]));
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
        let decision = Decision { epoch: Epoch(1), entry: configuration_entry };
        assert_eq!(Decisions::decode(&(), &Decisions::encode(&decision)), Ok(decision));
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
    let with_log = Eviction { incarnation: 1, without_log: false };
    let evicted = vec![(NodeId(0), with_log), (NodeId(2), with_log)];
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
    assert_eq!(leadership_records.eviction(NodeId(2), 1), Some(with_log));
    leadership_records.apply(&arrive(2, 6));
    assert!(!leadership_records.is_out(NodeId(0)));
    // Somebody of an earlier life is late.
    leadership_records.apply(&arrive(0, 5));
    assert_eq!(leadership_records.arrivals[&NodeId(0)], Arrival { incarnation: 2, life: 6 });
    let bytes = leadership_records.to_bytes();
    assert_eq!(LeadershipRecords::from_bytes(&bytes), Some(leadership_records));
    assert!((0..bytes.len()).all(|cut| LeadershipRecords::from_bytes(&bytes[..cut]).is_none()));
}

/// Records whose fence is of an earlier term than the primary's would make a candidate prepare that term.
#[test]
fn leadership_records_that_cannot_be_are_not_taken() {
    let arrival = Arrival { incarnation: 0, life: 7 };
    let settings = ConfigurationServiceSettings {
        topology: topology(),
        me: at(5, 3),
        configuration_service_log: 4,
        log: LOG,
        exchange: Some(EXCHANGE),
        checkpointer: 5,
        arrival,
        pace: Micros::from_millis(100),
        context: Arc::new(()),
        bugs: Bugs::NONE,
    };
    let mut role = ConfigurationService::<DividedEntries, Message<Decision>>::new(settings);
    let mut out = Outbox::default();
    let mut records = LeadershipRecords::new(&topology());
    records.version = 1;
    records.arrivals.insert(NodeId(5), arrival);
    role.take_records(Micros(1), records.clone(), &mut out);
    assert_eq!(*role.leadership_records, records);
    let mut damaged = records.clone();
    damaged.version = 2;
    damaged.leadership_records[0].fence = Some(Fence { term: 0, candidate: NodeId(3) });
    role.take_records(Micros(2), damaged, &mut out);
    assert_eq!(*role.leadership_records, records);
    assert_eq!(role.check(), Ok(()));
    role.succession = Some(Succession::new((PartitionId(0), 7), std::iter::empty(), Micros(0)));
    assert!(role.check().unwrap_err().contains("prepares term 7"));
}
