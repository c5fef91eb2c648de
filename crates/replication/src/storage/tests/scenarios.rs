//! One thing at a time: scenarios of regions.md, section 8, and schedules of commit.md, as far as they are of the log.

use std::sync::Arc;

use ordain_log::{LogConfig, LogError, LogWriter, MemoryDirectory};
use ordain_model::{Epoch, Micros};
use ordain_role::{Address, Bug, Bugs, Directory as _, Event, NodeId, Now, Outbox, Role as _};
use raft::eraftpb::HardState;

use super::world::{Fate, Region, World};
use crate::journal::record;
use crate::storage::message::{Ballot, Content, Line, Storage, Written};
use crate::storage::{
    StorageError, StorageLog, StorageLogSettings, StorageMode, StorageReplica, StorageReplicaSettings,
};
use crate::tests::{Message, Note, Notes};

/// A region at rest, every message of which takes one millisecond and every disk request two.
pub fn at_rest(region: Region) -> World {
    let mut world = World::new(region, 1, Bugs::NONE);
    (world.delay, world.disk_delay) = ((1000, 1000), (2000, 2000));
    settle(&mut world);
    world
}

pub fn settle(world: &mut World) {
    world.run_until(20_000_000, World::is_settled).unwrap();
    world.run(500_000).unwrap();
    assert!(world.is_settled(), "{}", world.describe());
}

pub fn fate(world: &World, id: u64) -> Option<Fate> {
    world.fates.get(&id).copied()
}

/// Appends so many entries at the leader, one after the other.
pub fn work(world: &mut World, entries: usize, size: u64) {
    for _ in 0..entries {
        let leader = world.leader().unwrap();
        world.append(leader, 1, size).unwrap();
        world.run(10_000).unwrap();
    }
}

/// All links go on, and what was held is lost.
pub fn renew_links(world: &mut World) {
    for (from, to) in std::mem::take(&mut world.cut) {
        world.break_stream(from, to);
    }
}

pub fn assert_golden(world: &mut World, name: &str, golden: &str) {
    let transcript = world.transcript.take().unwrap();
    assert!(transcript == golden, "the transcript is not that of {name}:\n{transcript}");
}

/// regions.md, section 4.10: the second largest acknowledgement of three counts, and nobody is handed anything before.
#[test]
fn an_entry_is_durable_when_two_of_three_have_it() {
    let mut world = at_rest(Region::new(2, 3));
    world.transcript = Some(String::new());
    world.set_cut(4);
    let id = world.append(0, 1, 10).unwrap();
    world.run(50_000).unwrap();
    assert_eq!(fate(&world, id), Some(Fate::Logged));
    assert_golden(&mut world, "commit", include_str!("scripts/commit.txt"));
}

/// regions.md, scenario 12: what a leader has taken and nobody has is lost with its lead, and no server is handed it. Nothing is sent
/// before the first line of the new ballot is durable (commit.md, schedule 9).
#[test]
fn an_entry_that_no_replica_has_is_lost_with_the_lead() {
    let mut world = at_rest(Region::new(2, 3));
    world.transcript = Some(String::new());
    world.set_cut(0);
    let lost = world.append(0, 1, 10).unwrap();
    world.run_until(3_000_000, |world| world.nodes[1].leads).unwrap();
    let kept = world.append(1, 1, 10).unwrap();
    world.run(20_000).unwrap();
    assert_eq!((fate(&world, lost), fate(&world, kept)), (None, Some(Fate::Logged)), "unknown, and durable");
    world.heal_links();
    world.run(300_000).unwrap();
    assert_eq!(fate(&world, lost), Some(Fate::Lost));
    assert_golden(&mut world, "failover", include_str!("scripts/failover.txt"));
}

/// regions.md, scenario 13, and commit.md, schedule 10: a server that stood still while another one began to lead goes on to append
/// and asks whether it leads. It is refused, and is not confirmed.
#[test]
fn a_zombie_is_refused_and_not_confirmed() {
    let mut world = at_rest(Region::new(2, 3));
    work(&mut world, 2, 10);
    world.transcript = Some(String::new());
    world.freeze(0, 3_000_000, false);
    world.run_until(2_500_000, |world| world.nodes[1].leads).unwrap();
    world.append(1, 1, 10).unwrap();
    world.run(20_000).unwrap();
    let id = world.append(0, 1, 10).unwrap();
    world.ask(0).unwrap();
    world.run(2_000_000).unwrap();
    assert_eq!(fate(&world, id), Some(Fate::Lost));
    assert_eq!((world.tally.confirmed, world.tally.refused), (0, 1));
    assert_golden(&mut world, "zombie", include_str!("scripts/zombie.txt"));
}

/// regions.md, scenario 14: a replica comes back with a longer tail of a leader that is gone. The tail is cut.
#[test]
fn a_longer_tail_that_is_not_durable_is_cut() {
    let mut world = at_rest(Region::new(2, 3));
    work(&mut world, 1, 10);
    world.transcript = Some(String::new());
    world.cut_link(0, 3);
    world.cut_link(0, 4);
    for _ in 0..3 {
        world.append(0, 1, 10).unwrap();
        world.run(5_000).unwrap();
    }
    world.stop(0, true);
    world.stop(2, true);
    renew_links(&mut world);
    world.run_until(3_000_000, |world| world.nodes[1].leads).unwrap();
    work(&mut world, 1, 10);
    world.start(2).unwrap();
    world.run(400_000).unwrap();
    assert_eq!(world.gauge(2, "ordain_storage_cut_total"), 3.0);
    assert_golden(&mut world, "tail", include_str!("scripts/tail.txt"));
    world.start(0).unwrap();
    settle(&mut world);
    let last = world.gauge(2, "ordain_storage_last_line");
    assert!(world.replicas().all(|node| world.gauge(node, "ordain_storage_last_line") == last));
}

/// commit.md, schedule 8: an entry is durable and its leader does not hear of that, nor of who leads next. It says nothing until it
/// does: yes or silence.
#[test]
fn a_sealed_server_says_yes_or_nothing() {
    let mut world = at_rest(Region::new(2, 3));
    world.transcript = Some(String::new());
    world.replicas().for_each(|replica| world.cut_link(replica, 0));
    let id = world.append(0, 1, 10).unwrap();
    world.run(20_000).unwrap();
    world.replicas().for_each(|replica| world.cut_link(0, replica));
    world.run_until(3_000_000, |world| world.nodes[1].leads).unwrap();
    let is_there = world.nodes[1].applied.iter().any(|bytes| Note::id_of(bytes) == id);
    assert!(is_there && fate(&world, id).is_none() && world.nodes[0].open.contains_key(&id));
    world.heal_links();
    world.run(400_000).unwrap();
    assert_eq!(fate(&world, id), Some(Fate::Logged));
    assert_golden(&mut world, "yes-or-silence", include_str!("scripts/yes-or-silence.txt"));
}

/// A region of two servers and five replicas in full mode, of which the first two are all that is left of the configuration. They
/// alone have the last entry, one or two of the others know who is left, and the third does not. The leader and those two are down.
fn with_two_left(bugs: Bugs) -> (World, u64) {
    let region = Region { mode: StorageMode::Full, ..Region::new(2, 5) };
    let mut world = World::new(region, 1, bugs);
    (world.delay, world.disk_delay) = ((1000, 1000), (2000, 2000));
    settle(&mut world);
    world.stop(5, true);
    world.stop(6, true);
    world.run(900_000).unwrap();
    work(&mut world, 150, 300);
    assert_eq!(world.gauge(0, "ordain_storage_configuration"), 3.0);
    // These two live and lag while the third is silent.
    world.set_cut(4);
    world.start(5).unwrap();
    world.start(6).unwrap();
    for _ in 0..200 {
        world.append(0, 1, 300).unwrap();
        world.run(4_000).unwrap();
    }
    world.run_until(10_000_000, |world| world.gauge(0, "ordain_storage_configuration") == 2.0).unwrap();
    world.set_cut(5);
    world.set_cut(6);
    let id = world.append(0, 1, 10).unwrap();
    world.run(20_000).unwrap();
    assert_eq!(fate(&world, id), Some(Fate::Logged), "two have it, and they are all");
    for node in [0, 2, 3] {
        world.stop(node, true);
    }
    world.heal_links();
    (world, id)
}

/// commit.md, schedule 9: three of five replicas are a majority, and none of them has all that is durable. The newest configuration
/// among them says who has.
#[test]
fn a_majority_without_a_member_of_the_configuration_does_not_do() {
    let (mut world, id) = with_two_left(Bugs::NONE);
    world.run(6_000_000).unwrap();
    assert_eq!(world.leader(), None);
    world.start(3).unwrap();
    let has_last = |world: &World| world.nodes[1].applied.last().is_some_and(|note| Note::id_of(note) == id);
    world.run_until(6_000_000, has_last).unwrap();
    world.start(2).unwrap();
    world.start(0).unwrap();
    settle(&mut world);
}

#[test]
fn a_server_that_reads_one_configuration_is_found_out() {
    let (mut world, _) = with_two_left(Bugs::NONE.with(Bug::ReadOneConfiguration));
    let found = world.run_until(30_000_000, |world| world.leader().is_some()).and_then(|_| {
        world.append(1, 1, 10)?;
        world.run(50_000)?;
        [0, 2, 3].into_iter().try_for_each(|node| world.start(node))?;
        world.run_until(10_000_000, World::is_settled)
    });
    let found = found.unwrap_err();
    assert!(!found.contains("come to pass"), "{found}");
}

/// regions.md, section 4.10: in full mode a silent replica stops all replies until a configuration leaves it out, and it is taken in
/// when it has caught up.
#[test]
fn in_full_mode_a_silent_replica_is_left_out_and_taken_in_again() {
    let mut world = at_rest(Region { mode: StorageMode::Full, ..Region::new(1, 3) });
    world.transcript = Some(String::new());
    world.set_cut(3);
    let id = world.append(0, 1, 10).unwrap();
    world.run(300_000).unwrap();
    assert_eq!(fate(&world, id), None, "two of three are not all");
    world.run(600_000).unwrap();
    assert_eq!(fate(&world, id), Some(Fate::Logged));
    assert_eq!(world.gauge(0, "ordain_storage_configuration"), 2.0);
    world.heal_links();
    world.run(600_000).unwrap();
    assert_eq!(world.gauge(0, "ordain_storage_configuration"), 3.0);
    assert_golden(&mut world, "full", include_str!("scripts/full.txt"));
}

#[test]
fn in_full_mode_there_are_never_fewer_than_two_copies() {
    let mut world = at_rest(Region { mode: StorageMode::Full, ..Region::new(1, 3) });
    world.set_cut(2);
    world.set_cut(3);
    let id = world.append(0, 1, 10).unwrap();
    world.run(5_000_000).unwrap();
    assert_eq!((fate(&world, id), world.gauge(0, "ordain_storage_configuration")), (None, 3.0));
    world.heal_links();
    settle(&mut world);
    assert_eq!(fate(&world, id), Some(Fate::Logged));
}

#[test]
fn while_disks_are_full_entries_are_sent_back_and_what_was_taken_is_kept() {
    let mut world = at_rest(Region::new(1, 3));
    for replica in [1, 2] {
        world.nodes[replica].disk.set_full_from(Some(0));
    }
    let taken = world.append(0, 1, 5000).unwrap();
    world.run(100_000).unwrap();
    assert_eq!(fate(&world, taken), None);
    let rejected = world.append(0, 1, 10).unwrap();
    assert_eq!((fate(&world, rejected), world.nodes[0].rejected), (Some(Fate::Lost), 1));
    assert_eq!(world.gauge(0, "ordain_storage_full_replicas"), 2.0);
    // Reads of what is durable go on.
    world.ask(0).unwrap();
    world.run(100_000).unwrap();
    assert_eq!(world.tally.confirmed, 1);
    world.nodes.iter_mut().for_each(|node| node.disk.set_full_from(None));
    world.run(2_000_000).unwrap();
    assert_eq!(fate(&world, taken), Some(Fate::Logged));
    let later = world.append(0, 1, 10).unwrap();
    world.run(100_000).unwrap();
    assert_eq!(fate(&world, later), Some(Fate::Logged));
    assert_eq!(world.gauge(0, "ordain_storage_full"), 0.0);
}

#[test]
fn a_server_that_stops_hands_over_at_once() {
    let mut world = at_rest(Region::new(2, 3));
    world.event(0, Event::Stop).unwrap();
    let took = world.run_until(2_000_000, |world| world.nodes[1].leads).unwrap();
    assert!(took < 500_000, "{took}");
}

#[test]
fn a_killed_leader_is_replaced_within_two_seconds() {
    for seed in 0..20 {
        let mut world = World::new(Region::new(2, 3), seed, Bugs::NONE);
        settle(&mut world);
        let leader = world.leader().unwrap();
        world.stop(leader, true);
        world.run_until(2_000_000, |world| world.leader().is_some()).unwrap();
    }
}

/// regions.md, section 4.2: an entry is applied before it is durable. A leader that is replaced meanwhile has applied what may never
/// be, and begins again.
#[test]
fn a_leader_that_applied_early_begins_again_when_it_is_replaced() {
    let mut world = at_rest(Region { early: true, ..Region::new(2, 3) });
    work(&mut world, 2, 10);
    world.transcript = Some(String::new());
    world.set_cut(0);
    world.append(0, 1, 10).unwrap();
    assert_eq!((world.nodes[0].applied.len(), world.nodes[0].durable), (3, 2));
    world.run_until(3_000_000, |world| world.nodes[1].leads).unwrap();
    world.append(1, 1, 10).unwrap();
    world.heal_links();
    world.run(400_000).unwrap();
    assert_eq!(world.tally.restarted, 1);
    assert_golden(&mut world, "early", include_str!("scripts/early.txt"));
    settle(&mut world);
    assert_eq!(world.nodes[0].applied, world.agreed);
}

#[test]
fn a_leader_that_applied_nothing_early_does_not_begin_again() {
    let mut world = at_rest(Region { early: true, ..Region::new(2, 3) });
    work(&mut world, 2, 10);
    world.run(300_000).unwrap();
    world.set_cut(0);
    world.run_until(3_000_000, |world| world.nodes[1].leads).unwrap();
    world.heal_links();
    settle(&mut world);
    assert_eq!(world.tally.restarted, 0);
}

#[test]
fn who_is_behind_all_logs_gets_a_checkpoint() {
    let mut world = at_rest(Region::new(2, 3));
    world.stop(4, true);
    world.stop(1, true);
    work(&mut world, 40, 300);
    world.run(200_000).unwrap();
    world.checkpoint(0);
    for replica in [2, 3] {
        world.trim(replica, true).unwrap();
    }
    world.run(500_000).unwrap();
    assert!(world.gauge(2, "ordain_storage_first_line") > 10.0);
    work(&mut world, 10, 300);
    world.start(4).unwrap();
    world.start(1).unwrap();
    settle(&mut world);
    assert_eq!(world.tally.copied, 2);
    let last = world.gauge(2, "ordain_storage_last_line");
    assert_eq!(world.gauge(4, "ordain_storage_last_line"), last);
    // The one that was behind keeps what the others keep.
    world.stop(2, true);
    work(&mut world, 3, 300);
    assert!(world.nodes[0].open.is_empty(), "{}", world.describe());
}

/// Two replicas lack lines that the others have trimmed. Neither is a source for the other, so the leader waits for the answer of neither.
#[test]
fn two_that_are_behind_all_logs_get_a_checkpoint_each() {
    let mut world = at_rest(Region::new(1, 5));
    [4, 5].into_iter().for_each(|replica| world.stop(replica, true));
    work(&mut world, 40, 300);
    world.run(200_000).unwrap();
    world.checkpoint(0);
    for replica in [1, 2, 3] {
        world.trim(replica, true).unwrap();
    }
    world.run(500_000).unwrap();
    work(&mut world, 10, 300);
    [4, 5].into_iter().for_each(|replica| world.start(replica).unwrap());
    world.run(1_000_000).unwrap();
    // The replicas forget that they were told before the leader had heard of both.
    [4, 5].into_iter().for_each(|replica| world.nodes[replica].behind = None);
    world.run_until(10_000_000, |world| world.tally.copied == 2).unwrap();
    world.run(2_000_000).unwrap();
    let last = world.gauge(1, "ordain_storage_last_line");
    assert_eq!([4, 5].map(|replica| world.gauge(replica, "ordain_storage_last_line")), [last; 2]);
}

#[test]
fn a_replica_that_lags_gets_lines_that_the_leader_does_not_keep() {
    let mut world = at_rest(Region::new(1, 3));
    world.stop(3, true);
    work(&mut world, 40, 300);
    world.start(3).unwrap();
    settle(&mut world);
    world.run(2_000_000).unwrap();
    assert!(world.gauge(0, "ordain_storage_relayed_total") > 0.0);
    let last = world.gauge(1, "ordain_storage_last_line");
    assert_eq!(world.gauge(3, "ordain_storage_last_line"), last);
    assert_eq!(world.gauge(0, "ordain_storage_lag_lines{replica=\"2\"}"), 0.0);
}

#[test]
fn damage_is_refused() {
    let mut world = at_rest(Region::new(1, 1));
    work(&mut world, 20, 300);
    world.stop(1, false);
    let segment = world.nodes[1].disk.list().unwrap().into_iter().map(|(file, _)| file);
    let first = segment.filter(|file| file.starts_with("log-") && file != "log-base").min().unwrap();
    world.nodes[1].disk.damage(&first, 700, 1);
    let refused = world.start(1).unwrap_err();
    assert!(refused.contains("log damaged"), "{refused}");
}

/// A directory of a version without generations: a record has no vote, and no number in its place.
#[test]
fn a_directory_without_generations_is_refused() {
    let mut disk = MemoryDirectory::new();
    let (mut writer, _) = LogWriter::open(&mut disk, LogConfig::new(*b"alone"), |_| Ok(())).unwrap();
    let hard = HardState { term: 64, ..HardState::default() };
    writer.append(Epoch(1), 64, record::encode(&hard, &[])).unwrap();
    while let Some(request) = writer.next_request() {
        writer.done(&ordain_log::carry_out(&mut disk, &request));
    }
    let Err(refused) = Alone::open(disk) else { panic!("it is taken") };
    assert!(refused.to_string().contains("storage nodes had no generations"), "{refused}");
}

fn nodes(of: &[u16]) -> Vec<NodeId> {
    of.iter().copied().map(NodeId).collect()
}

#[test]
fn a_region_has_servers_and_storage_nodes_each_once() {
    let refused = |servers: &[u16], replicas: &[u16]| {
        let me = Address { node: NodeId(0), role: 1 };
        let settings = StorageLogSettings::new(me, nodes(servers), nodes(replicas));
        let log = StorageLog::<Notes, Message>::new(settings, Arc::new(()), (me, Vec::new()));
        match log {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    };
    assert_eq!(refused(&[0], &[1]), "");
    assert_eq!(refused(&[0], &[1, 2, 3, 4, 5, 6, 7]), "");
    assert!(refused(&[0], &[]).contains("no storage replica"));
    assert!(refused(&[0], &[1, 2, 3, 4, 5, 6, 7, 8]).contains("more than 7"));
    assert!(refused(&[0, 1], &[1, 2]).contains("named twice"));
    assert!(refused(&[3], &[1, 2]).contains("not among"));
    assert!(refused(&[], &[1, 2]).contains("no database server"));
    let me = Address { node: NodeId(9), role: 1 };
    let settings = StorageReplicaSettings::new(me, nodes(&[0]), nodes(&[1]));
    assert!(matches!(StorageReplica::<Note, Message>::in_memory(settings), Err(StorageError::Settings(_))));
}

/// A replica by itself, and the server that speaks to it.
struct Alone {
    replica: StorageReplica<Note, Message>,
    disk: MemoryDirectory,
}

impl Alone {
    fn open(mut disk: MemoryDirectory) -> Result<Alone, StorageError> {
        let me = Address { node: NodeId(1), role: 1 };
        let settings = StorageReplicaSettings::new(me, nodes(&[0]), nodes(&[1]));
        let (replica, _) = StorageReplica::open(&mut disk, LogConfig::new(*b"alone"), settings)?;
        Ok(Alone { replica, disk })
    }

    /// The answers to a message of a node, once the disk has done all it was asked for.
    fn tell(&mut self, node: u16, message: Storage) -> Vec<Storage> {
        let from = Address { node: NodeId(node), role: 1 };
        let mut events = vec![Event::Message { from, message: message.into() }];
        let mut answers = Vec::new();
        while let Some(event) = events.pop() {
            let mut out = Outbox::default();
            self.replica.handle(Now { elapsed: Micros(7), ..Now::default() }, event, &mut out);
            self.replica.check().unwrap();
            assert_eq!(out.halt, None);
            for request in out.disk {
                events.push(Event::Disk(ordain_log::carry_out(&mut self.disk, &request)));
            }
            for (_, message) in out.sends {
                if let Message::Storage(answer) = message {
                    answers.push(answer);
                }
            }
        }
        answers
    }
}

/// The generation of a replica by itself.
const GENERATION: u64 = 1;

fn append(ballot: u64, number: u64, previous: (u64, u64), ballots: &[u64]) -> Storage {
    let content = |place: usize| Content::Entry(vec![place as u8 + 1; 20].into());
    let lines = ballots.iter().enumerate();
    let lines = lines.map(|(place, of)| Written { ballot: Ballot(*of), content: content(place) }).collect();
    let previous = Line { ballot: Ballot(previous.0), lsn: previous.1 };
    let (ballot, generation) = (Ballot(ballot), GENERATION);
    Storage::Append { ballot, number, previous, lines, durable: 0, generation, acknowledged: 0 }
}

fn appended(ballot: u64, number: u64, through: u64) -> Vec<Storage> {
    let (ballot, generation) = (Ballot(ballot), GENERATION);
    vec![Storage::Appended { ballot, generation, number, through, is_full: false }]
}

/// regions.md, scenario 11: a line is not taken before the one before it.
#[test]
fn a_replica_takes_no_line_behind_a_gap() {
    let mut alone = Alone::open(MemoryDirectory::new()).unwrap();
    assert_eq!(alone.tell(0, append(64, 1, (0, 0), &[64, 64])), appended(64, 1, 2));
    let unfit = |ballot, number| Storage::Unfit {
        ballot: Ballot(ballot),
        generation: GENERATION,
        number,
        durable: 0,
    };
    assert_eq!(alone.tell(0, append(64, 2, (64, 3), &[64])), [unfit(64, 2)], "line 3 is not here");
    assert_eq!(alone.tell(0, append(64, 3, (64, 2), &[64])), appended(64, 3, 3));
    assert_eq!(alone.tell(0, append(64, 4, (64, 1), &[64])), appended(64, 4, 2), "line 2 again cuts nothing");
    assert_eq!(
        alone.tell(0, append(128, 5, (65, 3), &[128])),
        [unfit(128, 5)],
        "line 3 is of another ballot"
    );
    assert_eq!(alone.tell(0, append(128, 6, (64, 1), &[128])), appended(128, 6, 2));
    assert_eq!(alone.replica.store_last(), 2, "what followed line 2 is cut");
}

/// A replica promises larger ballots only, keeps what it has promised, and takes nothing of a node that is no server.
#[test]
fn a_replica_keeps_its_promise_when_it_comes_back() {
    let mut alone = Alone::open(MemoryDirectory::new()).unwrap();
    let seal = |ballot| Storage::Seal(Ballot(ballot));
    let refused =
        |ballot, promised| vec![Storage::Refused { ballot: Ballot(ballot), promised: Ballot(promised) }];
    assert_eq!(alone.tell(7, seal(128)), [], "no server of the region");
    assert!(matches!(&alone.tell(0, seal(128))[..], [Storage::Sealed { ballot: Ballot(128), .. }]));
    assert_eq!(alone.tell(0, seal(128)), refused(128, 128), "strictly larger ones only");
    let mut again = Alone::open(alone.disk).unwrap();
    assert_eq!(again.tell(0, seal(127)), refused(127, 128));
    assert_eq!(again.tell(0, append(64, 1, (0, 0), &[64])), refused(64, 128));
    assert_eq!(again.tell(0, Storage::Confirm { ballot: Ballot(64), n: 1 }), refused(64, 128));
    assert_eq!(again.tell(0, append(128, 1, (0, 0), &[128])), appended(128, 1, 1));
    let mut other = MemoryDirectory::new();
    std::mem::swap(&mut other, &mut again.disk);
    let config = LogConfig::new(*b"another");
    let me = Address { node: NodeId(1), role: 1 };
    let settings = StorageReplicaSettings::new(me, nodes(&[0]), nodes(&[1]));
    let opened = StorageReplica::<Note, Message>::open(&mut other, config, settings);
    assert!(matches!(opened, Err(StorageError::Log(LogError::Damaged { .. } | LogError::Identity { .. }))));
}
