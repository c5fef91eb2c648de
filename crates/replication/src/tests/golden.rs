//! The bytes between the nodes of a log, and on its disk: each variant once, compared with `golden/bytes.txt`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_fuzz::{damage_each, golden};
use ordain_model::wire::Codec as _;
use ordain_model::{Epoch, Micros, PartitionId};
use ordain_role::{Bytes, NodeId, ReplicaId};

use crate::{
    After, Ballot, Content, Line, LogBase, ReplicaState, Storage, StorageConfiguration, StorageMember,
    Written,
};
use crate::{
    Arrival, Configuration, ConfigurationEntry, Decision, Decisions, Ending, EntryType as _, Eviction, Fence,
    GroupMessage, Held, LeadershipRecord, LeadershipRecords, Ship,
};

fn ships() -> Vec<(&'static str, Ship)> {
    let content = || Some(Arc::new(b"content".to_vec()));
    let held = |content| Held { epoch: Epoch(0x71), parts: 0x72, content };
    let (term, after, through) = (0x0102_0304_0506_0708, Epoch(0x1112), Epoch(0x2122));
    let (partition, since, executed) = (PartitionId(0x3132), Epoch(0x41), Epoch(0x51));
    vec![
        ("ship.entry", Ship::Entry { term, after, through, content: content() }),
        ("ship.entry.empty", Ship::Entry { term, after, through, content: None }),
        ("ship.pause", Ship::Pause { term }),
        ("ship.want", Ship::Want { term, after }),
        ("ship.have", Ship::Have { term, through }),
        ("ship.collect", Ship::Collect { partition, term, after }),
        (
            "ship.collected",
            Ship::Collected {
                partition,
                term,
                since,
                through,
                executed,
                held: vec![held(content()), held(None)],
                is_all: true,
            },
        ),
        ("ship.trimmed", Ship::Trimmed { term, through }),
        ("ship.decided", Ship::Decided { term, entries: Vec::new() }),
    ]
}

fn leadership_records() -> LeadershipRecords {
    let record = |term, fence| LeadershipRecord {
        term,
        primary: NodeId(0x21),
        first: Epoch(0x31),
        fence,
        in_sync: vec![NodeId(0x41), NodeId(0x42)],
    };
    let fence = Fence { term: 0x12, candidate: NodeId(0x22) };
    let eviction = |without_log| Eviction { incarnation: 0x51, without_log };
    let arrival = Arrival { incarnation: 0x61, life: 0x62 };
    LeadershipRecords {
        version: 0x71,
        leadership_records: vec![record(0x11, None), record(0x11, Some(fence))],
        evicted: BTreeMap::from([(NodeId(1), eviction(true)), (NodeId(2), eviction(false))]),
        arrivals: BTreeMap::from([(NodeId(3), arrival)]),
    }
}

fn configurations() -> Vec<(&'static str, Configuration)> {
    let arrival = Arrival { incarnation: 0x61, life: 0x62 };
    let ending = Ending {
        partition: PartitionId(0x11),
        term: 0x12,
        end: Epoch(0x13),
        first: Epoch(0x14),
        absent: BTreeSet::from([NodeId(5), NodeId(6)]),
        suspects: BTreeSet::from([ReplicaId(7)]),
    };
    let (version, through, in_sync) = (0x21, Epoch(0x22), vec![NodeId(0x23)]);
    let report =
        |ending| Configuration::Report { arrival, version, through, in_sync: in_sync.clone(), ending };
    let state = Configuration::State {
        leadership_records: Box::new(leadership_records()),
        low_watermarks: vec![Epoch(0x31), Epoch(0x32)],
    };
    vec![
        ("configuration.report", report(None)),
        ("configuration.report.ending", report(Some(ending))),
        ("configuration.state", state),
        ("configuration.stable", Configuration::Stable(Epoch(1))),
    ]
}

fn entries() -> Vec<(&'static str, ConfigurationEntry)> {
    let (partition, term) = (PartitionId(0x11), 0x12);
    let eviction = Eviction { incarnation: 0x51, without_log: true };
    vec![
        (
            "entry.arrive",
            ConfigurationEntry::Arrive {
                node: NodeId(3),
                arrival: Arrival { incarnation: 0x61, life: 0x62 },
            },
        ),
        (
            "entry.sync",
            ConfigurationEntry::Sync { partition, term, in_sync: vec![NodeId(0x23), NodeId(0x24)] },
        ),
        (
            "entry.fence",
            ConfigurationEntry::Fence { partition, fence: Fence { term, candidate: NodeId(0x22) } },
        ),
        (
            "entry.leadership",
            ConfigurationEntry::LeadershipRecord {
                partition,
                term,
                end: Epoch(0x13),
                first: Epoch(0x14),
                evicted: vec![(NodeId(9), eviction)],
            },
        ),
    ]
}

fn storages() -> Vec<(&'static str, Storage)> {
    let (ballot, number, durable, epoch) = (Ballot(0x0102_0304_0506), 0x11, 0x12, Epoch(0x13));
    let previous = Line { ballot: Ballot(0x21), lsn: 0x22 };
    let generation = 0x35;
    let member = |node, generation| StorageMember { node: NodeId(node), generation };
    let configuration = StorageConfiguration {
        counted: vec![member(0x31, generation), member(0x32, 0x36)],
        required: vec![NodeId(0x32)],
        before: vec![member(0x31, 0x37)],
        is_first: true,
    };
    let state = ReplicaState {
        generation,
        promised: ballot,
        silence: Micros(0x41),
        last: previous,
        durable,
        configuration: configuration.clone(),
        configured: 0x38,
        is_full: true,
    };
    let lines = [
        Content::Entry(Bytes::from_static(b"entry")),
        Content::Begin,
        Content::Configuration(configuration.clone()),
    ];
    let lines: Vec<Written> = lines.into_iter().map(|content| Written { ballot, content }).collect();
    let base = LogBase { last: previous, epoch, configuration };
    vec![
        ("storage.ask", Storage::Ask),
        ("storage.state", Storage::State(state.clone())),
        ("storage.seal", Storage::Seal(ballot)),
        ("storage.sealed", Storage::Sealed { ballot, state }),
        (
            "storage.append",
            Storage::Append {
                ballot,
                number,
                previous,
                lines: lines.clone(),
                durable,
                generation,
                acknowledged: 0x14,
            },
        ),
        ("storage.appended", Storage::Appended { ballot, generation, number, through: 0x51, is_full: false }),
        ("storage.unfit", Storage::Unfit { ballot, generation, number, durable }),
        ("storage.refused", Storage::Refused { ballot, promised: Ballot(0x61) }),
        ("storage.fetch.lsn", Storage::Fetch { number, ballot, after: After::Lsn(0x71) }),
        ("storage.fetch.epoch", Storage::Fetch { number, ballot, after: After::Epoch(epoch) }),
        (
            "storage.fetched",
            Storage::Fetched { number, ballot, after: After::Lsn(0x71), previous, lines, durable },
        ),
        ("storage.trimmed", Storage::Trimmed { number, after: After::Epoch(epoch), base: base.clone() }),
        ("storage.confirm", Storage::Confirm { ballot, n: 0x81 }),
        ("storage.confirmed", Storage::Confirmed { ballot, generation, n: 0x81 }),
        ("storage.behind", Storage::Behind { ballot, base }),
        ("storage.resign", Storage::Resign(ballot)),
    ]
}

#[test]
fn bytes_are_as_they_were() {
    let mut all = Vec::new();
    all.extend(ships().into_iter().map(|(name, ship)| (name, ship.to_bytes())));
    let configurations = configurations().into_iter();
    all.extend(configurations.map(|(name, message)| (name, message.to_bytes())));
    let decision = |entry| Decisions::encode(&Decision { epoch: Epoch(0x81), entry });
    all.extend(entries().into_iter().map(|(name, entry)| (name, decision(entry))));
    let (head, tail) = (Bytes::from_static(b"head"), Bytes::from_static(b"tail"));
    let group = GroupMessage { from: NodeId(0x0102), head, tail };
    let mut head = Vec::new();
    group.encode_head(&mut head);
    all.push(("group.head", head));
    all.extend(storages().into_iter().map(|(name, message)| (name, message.to_bytes())));
    golden(concat!(env!("CARGO_MANIFEST_DIR"), "/golden/bytes.txt"), &all);
}

/// A truncated message is none. A damaged one is none, or one that could have been written.
#[test]
fn damage_is_harmless() {
    for (name, ship) in ships() {
        let bytes = ship.to_bytes();
        damage_each(&bytes, |damaged| {
            let Some(read) = Ship::from_bytes(damaged) else { return };
            assert_eq!(damaged.len(), bytes.len(), "{name}");
            assert_eq!(read.to_bytes(), damaged, "{name}");
        });
    }
    for (name, message) in storages() {
        let bytes = message.to_bytes();
        assert_eq!(Storage::from_bytes(&bytes), Some(message), "{name}");
        damage_each(&bytes, |damaged| {
            let Some(read) = Storage::from_bytes(damaged) else { return };
            assert_eq!(damaged.len(), bytes.len(), "{name}");
            assert_eq!(read.to_bytes(), damaged, "{name}");
        });
    }
    for (name, configuration) in configurations() {
        let bytes = configuration.to_bytes();
        damage_each(&bytes, |damaged| {
            let read = Configuration::from_bytes(damaged);
            assert!(read.is_none() || damaged.len() == bytes.len(), "{name}");
        });
    }
    for (name, entry) in entries() {
        let decision = Decision { epoch: Epoch(0x81), entry };
        let bytes = Decisions::encode(&decision);
        assert_eq!(Decisions::decode(&(), &bytes), Ok(decision), "{name}");
        damage_each(&bytes, |damaged| {
            let read = Decisions::decode(&(), damaged);
            assert!(read.is_err() || damaged.len() == bytes.len(), "{name}");
        });
    }
}
