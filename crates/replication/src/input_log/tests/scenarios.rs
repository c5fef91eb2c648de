//! One thing at a time.

use std::sync::Arc;

use ordain_model::{Epoch, PartitionId};
use ordain_role::{Address, Directory as _, DiskDone, Event, NodeId, Outbox, PeerState, Role, TimerId};

use super::world::World;
use crate::configuration_service::{Arrival, Eviction};
use crate::entry::EntryType as _;
use crate::message::{Covered, Ship};
use crate::tests::{Log, Message, Notes};
use crate::{InputLog, LogSettings, RESERVE};

const ASK: TimerId = TimerId(3);

fn world(nodes: usize) -> World {
    let mut world = World::new(nodes, 1).unwrap();
    world.settle().unwrap();
    // What a primary seals to begin with is not what the tests are about.
    world.nodes.iter_mut().for_each(|node| node.sealed.clear());
    world
}

/// The primary seals some batches, and everything comes to rest.
fn seal(world: &mut World, sizes: &[u64]) {
    for size in sizes {
        world.append(world.primary(), *size).unwrap();
        world.settle().unwrap();
    }
}

/// What is on a link, in short.
fn on_link(world: &World, from: usize, to: usize) -> Vec<String> {
    let word = |message: &Message| match message {
        Message::Ship(Ship::Entry { after, through, content, .. }) => {
            let content = if content.is_some() { "batch" } else { "empty" };
            format!("{content} {} after {}", short(*through), short(*after))
        }
        Message::Ship(Ship::Want { after, .. }) => format!("want {}", short(*after)),
        Message::Ship(Ship::Have { through, .. }) => format!("have {}", short(*through)),
        Message::Ship(Ship::Pause { .. }) => "pause".to_owned(),
        other => format!("{other:?}"),
    };
    world.links.get(&(from, to)).map_or_else(Vec::new, |link| link.iter().map(word).collect())
}

/// Epochs of the first life of the first primary begin after the reserve.
fn short(epoch: Epoch) -> u64 {
    epoch.0.saturating_sub(RESERVE)
}

fn run_disk(world: &mut World, node: usize) {
    while !world.nodes[node].requests.is_empty() {
        world.disk(node).unwrap();
    }
}

#[test]
fn what_the_primary_seals_is_shipped_in_order_and_nobody_is_waited_for() {
    let mut world = world(2);
    assert_eq!(world.nodes[0].leader, Some(NodeId(0)));
    assert_eq!((world.nodes[1].leader, world.nodes[1].leads), (Some(NodeId(0)), false));
    for size in [10, 0, 20] {
        world.append(0, size).unwrap();
        run_disk(&mut world, 0);
    }
    assert_eq!(world.nodes[0].sealed.len(), 3, "it has waited for nobody");
    assert_eq!(on_link(&world, 0, 1), ["batch 1 after 0", "empty 2 after 1", "batch 3 after 1"]);
    assert!(world.gauge(0, "ordain_ship_behind_bytes") > 0.0);
    assert!(world.nodes[1].sealed.is_empty());
    world.deliver(0, 1).unwrap();
    assert!(world.nodes[1].sealed.is_empty(), "not before it is durable");
    world.settle().unwrap();
    assert_eq!(world.nodes[1].sealed, world.nodes[0].sealed);
    world.converged().unwrap();
    // All have it: nothing is kept.
    assert_eq!(world.gauge(0, "ordain_ship_kept_bytes"), 0.0);
    assert_eq!(world.gauge(0, "ordain_ship_behind_bytes"), 0.0);
    world.tell_leadership_records(0, true).unwrap();
    assert_eq!(world.nodes[0].kept, (Epoch(RESERVE + 3), vec![NodeId(1)]));
    world.tell_leadership_records(1, true).unwrap();
    assert_eq!(world.nodes[1].kept, (Epoch(RESERVE + 3), vec![]));
}

#[test]
fn a_gap_is_noticed_and_asked_for_once() {
    let mut world = world(2);
    seal(&mut world, &[10]);
    for size in [10, 10, 10] {
        world.append(0, size).unwrap();
        run_disk(&mut world, 0);
    }
    world.links.get_mut(&(0, 1)).unwrap().pop_front();
    world.deliver(0, 1).unwrap();
    world.deliver(0, 1).unwrap();
    assert_eq!(on_link(&world, 1, 0), ["want 1"]);
    world.settle().unwrap();
    world.converged().unwrap();
}

#[test]
fn a_question_that_is_lost_is_asked_again_and_an_idle_member_asks_nothing() {
    let mut world = world(2);
    seal(&mut world, &[10]);
    world.break_link(0, 1).unwrap();
    assert_eq!((on_link(&world, 1, 0), on_link(&world, 0, 1)), (vec!["want 1".into()], vec!["pause".into()]));
    world.links.clear();
    world.fire(1, ASK).unwrap();
    assert_eq!(on_link(&world, 1, 0), ["want 1"]);
    world.settle().unwrap();
    world.fire(1, ASK).unwrap();
    assert!(world.links.values().all(|link| link.is_empty()));
    seal(&mut world, &[10]);
    world.converged().unwrap();
}

#[test]
fn a_member_that_starts_again_goes_on_after_its_log() {
    let mut world = world(3);
    seal(&mut world, &[10, 10, 0]);
    world.crash(1);
    seal(&mut world, &[10, 0]);
    world.start(1).unwrap();
    assert_eq!(world.nodes[1].entries, 2);
    assert_eq!(on_link(&world, 1, 0), ["want 2"]);
    world.settle().unwrap();
    world.converged().unwrap();
    assert_eq!(world.nodes[1].sealed.last(), world.nodes[0].sealed.last());
}

#[test]
fn a_primary_that_starts_again_skips_what_it_may_have_used() {
    let mut world = world(2);
    seal(&mut world, &[10, 0, 0]);
    world.crash(0);
    world.start(0).unwrap();
    world.settle().unwrap();
    assert!(world.nodes[0].leads);
    assert_eq!(world.nodes[0].epoch, RESERVE + 1 + RESERVE);
    seal(&mut world, &[0, 10]);
    world.converged().unwrap();
    let new = [RESERVE + 2 + RESERVE, RESERVE + 3 + RESERVE];
    assert!(world.nodes.iter().all(|node| node.sealed.ends_with(&new)), "and the member knows of both");
}

#[test]
fn a_member_that_was_away_for_long_is_read_the_files_piece_by_piece() {
    let mut world = world(2);
    seal(&mut world, &[10]);
    world.crash(1);
    seal(&mut world, &[200; 100]);
    assert!(world.gauge(0, "ordain_ship_kept_bytes") <= 2000.0);
    // Its memory is that of a new process, and its log the same.
    world.crash(0);
    world.start(0).unwrap();
    seal(&mut world, &[200; 3]);
    world.most_on_link = 0;
    world.start(1).unwrap();
    world.settle().unwrap();
    world.converged().unwrap();
    assert!(world.gauge(0, "ordain_ship_read_again_total") >= 100.0);
    assert!(world.most_on_link < 8, "{} messages at once", world.most_on_link);
    assert_eq!(world.gauge(0, "ordain_ship_live_members"), 1.0);
    seal(&mut world, &[10]);
    world.converged().unwrap();
}

#[test]
fn what_comes_while_a_member_is_read_the_files_comes_after() {
    let mut world = world(2);
    world.crash(1);
    seal(&mut world, &[200; 50]);
    world.start(1).unwrap();
    for _ in 0..100 {
        world.append(0, 50).unwrap();
        run_disk(&mut world, 0);
        (0..3).for_each(|_| {
            world.step().unwrap();
        });
    }
    world.settle().unwrap();
    world.converged().unwrap();
}

#[test]
fn a_member_with_a_full_disk_disturbs_nobody_and_holds_little() {
    let mut world = world(2);
    seal(&mut world, &[10]);
    world.nodes[1].disk.set_full_from(Some(0));
    seal(&mut world, &[300; 30]);
    assert_eq!((world.nodes[0].rejected, world.nodes[1].rejected), (0, 0));
    assert_eq!((world.nodes[0].entries, world.nodes[1].entries), (31, 1));
    let held = world.gauge(1, "ordain_log_pending_entries");
    assert!((1.0..12.0).contains(&held), "{held} entries in memory");
    assert_eq!(world.gauge(0, "ordain_ship_live_members"), 0.0);
    world.wait().unwrap();
    assert_eq!(world.nodes[1].entries, 1);
    world.nodes[1].disk.set_full_from(None);
    world.wait().unwrap();
    world.converged().unwrap();
    assert_eq!(world.gauge(0, "ordain_ship_live_members"), 1.0);
}

#[test]
fn a_primary_with_a_full_disk_refuses_and_ships_nothing_of_it() {
    let mut world = world(2);
    seal(&mut world, &[10]);
    world.nodes[0].disk.set_full_from(Some(0));
    seal(&mut world, &[10]);
    world.nodes[0].disk.set_full_from(None);
    world.wait().unwrap();
    assert_eq!((world.nodes[0].rejected, world.nodes[0].entries), (1, 1));
    seal(&mut world, &[20]);
    world.converged().unwrap();
    assert_eq!(short(Epoch(world.nodes[1].sealed[1])), 2, "its epoch was to be had again");
}

#[test]
fn a_link_that_holds_is_not_filled_while_the_other_is_away() {
    let mut world = world(2);
    world.peer(0, 1, PeerState::Lost).unwrap();
    seal(&mut world, &[10, 10]);
    assert_eq!(world.nodes[1].entries, 0);
    world.peer(0, 1, PeerState::Back).unwrap();
    world.settle().unwrap();
    world.converged().unwrap();
}

#[test]
fn what_comes_from_an_earlier_term_or_from_somebody_else_is_refused() {
    let mut world = world(3);
    seal(&mut world, &[10]);
    let content = Some(Arc::new(Notes::encode(&world.note(RESERVE + 2, 10))));
    let batch = |term| {
        let (after, through) = (Epoch(RESERVE + 1), Epoch(RESERVE + 2));
        Ship::Entry { term, after, through, content: content.clone() }
    };
    world.tell(1, (0, 1), batch(0)).unwrap();
    world.tell(1, (0, 1), batch(2)).unwrap();
    world.tell(1, (2, 1), batch(1)).unwrap();
    world.settle().unwrap();
    assert_eq!((world.nodes[1].entries, world.gauge(1, "ordain_log_pending_entries")), (1, 0.0));
    // A log that is not what it is said to be stops the node.
    let (after, through) = (Epoch(RESERVE + 1), Epoch(RESERVE + 3));
    let wrong = Ship::Entry { term: 1, after, through, content };
    assert!(world.tell(1, (0, 1), wrong).unwrap_err().contains("cannot be read"));
}

#[test]
fn while_a_term_is_prepared_nothing_is_taken_and_what_is_in_the_log_is_sealed() {
    let mut world = world(2);
    seal(&mut world, &[10]);
    world.append(0, 10).unwrap();
    run_disk(&mut world, 0);
    world.append(0, 10).unwrap();
    world.fence(1).unwrap();
    assert_eq!((world.nodes[0].leader, world.nodes[0].leads, world.nodes[1].leader), (None, false, None));
    world.nodes[0].disk.set_full_from(Some(0));
    run_disk(&mut world, 0);
    world.nodes[0].disk.set_full_from(None);
    world.wait().unwrap();
    assert_eq!(
        (world.nodes[0].entries, world.nodes[0].rejected),
        (3, 0),
        "kept, and written when there is space"
    );
    assert_eq!(world.nodes[1].entries, 1, "it does not take what comes");
    world.append(0, 10).unwrap();
    assert_eq!(world.nodes[0].lost, 1);
}

#[test]
fn a_primary_that_has_lost_touch_takes_nothing_more_but_ships() {
    let mut world = world(2);
    world.append(0, 10).unwrap();
    world.tell_leadership_records(0, false).unwrap();
    assert!(!world.nodes[0].leads);
    world.settle().unwrap();
    world.converged().unwrap();
    world.append(0, 10).unwrap();
    assert_eq!(world.nodes[0].lost, 1);
    world.tell_leadership_records(0, true).unwrap();
    assert!(world.nodes[0].leads);
    seal(&mut world, &[10]);
    world.converged().unwrap();
}

#[test]
fn a_candidate_is_told_what_there_is_from_files_memory_and_what_is_being_written() {
    let mut world = world(2);
    world.crash(1);
    seal(&mut world, &[200; 40]);
    seal(&mut world, &[0]);
    world.append(0, 10).unwrap();
    world.start(1).unwrap();
    world.links.clear();
    // Who is not fenced for that term says nothing.
    let ask = |term| Ship::Collect { partition: PartitionId(0), term, after: Epoch(0) };
    world.tell(0, (1, 4), ask(1)).unwrap();
    world.fence(1).unwrap();
    world.tell(0, (1, 4), ask(3)).unwrap();
    assert!(world.nodes[1].collected.is_empty());
    let (held, through) = world.collect(0, 1, Epoch(0)).unwrap();
    assert_eq!((held.len(), short(through)), (41, 42));
    assert!(held.iter().all(|held| held.parts == 1 && held.content.is_some()));
    assert!(held.is_sorted_by_key(|held| held.epoch));
    let (rest, _) = world.collect(0, 1, held[39].epoch).unwrap();
    assert_eq!(rest.len(), 1);
    assert!(world.collect(0, 1, through).unwrap().0.is_empty());
}

#[test]
fn what_is_being_taken_back_is_not_told_to_a_candidate_nor_is_anything_before_it_is_gone() {
    let mut world = world(2);
    world.append(0, 10).unwrap();
    world.nodes[0].disk.set_full_from(Some(0));
    run_disk(&mut world, 0);
    world.fence(1).unwrap();
    let collect = Ship::Collect { partition: PartitionId(0), term: 2, after: Epoch(0) };
    let is_clean = world.nodes[0].rejected == 1;
    world.tell(0, (1, 4), collect).unwrap();
    assert_eq!(world.nodes[1].collected.is_empty(), !is_clean);
    world.nodes[0].disk.set_full_from(None);
    world.wait().unwrap();
    assert_eq!(world.nodes[0].rejected, 1);
    let Some(Ship::Collected { held, is_all: true, .. }) = world.nodes[1].collected.pop() else {
        panic!("it does not say")
    };
    assert!(held.is_empty());
}

#[test]
fn a_candidate_is_told_of_its_own_log_what_is_on_disk() {
    let mut world = world(2);
    world.append(0, 10).unwrap();
    run_disk(&mut world, 0);
    world.deliver(0, 1).unwrap();
    world.fence(1).unwrap();
    let collect = Ship::Collect { partition: PartitionId(0), term: 2, after: Epoch(u64::MAX) };
    world.tell(1, (1, 4), collect).unwrap();
    assert!(world.nodes[1].collected.is_empty());
    run_disk(&mut world, 1);
    let Some(Ship::Collected { held, through, is_all: true, .. }) = world.nodes[1].collected.pop() else {
        panic!("it does not say")
    };
    assert_eq!((held.len(), short(through)), (0, 1));
}

#[test]
fn a_candidate_leads_when_what_was_decided_is_sealed() {
    let mut world = world(3);
    seal(&mut world, &[10, 10]);
    // One member has more than the candidate.
    world.append(0, 10).unwrap();
    run_disk(&mut world, 0);
    world.deliver(0, 2).unwrap();
    run_disk(&mut world, 2);
    world.crash(0);
    world.fence(1).unwrap();
    world.gather(1).unwrap();
    let known = world.nodes[1].kept.0;
    world.tell_leadership_records(1, true).unwrap();
    assert_eq!(
        (world.nodes[1].kept.0, world.nodes[1].entries),
        (known, 2),
        "it says nothing of what may be lost"
    );
    world.leadership_record(1).unwrap();
    assert!(world.nodes[1].kept.0 > known && world.nodes[1].leads);
    assert_eq!((world.nodes[1].entries, world.truth.len()), (3, 3));
    // What its sequencer might have sent before it knew of that is not taken.
    let first = world.leadership_records.leadership_records[0].first.0;
    let early = world.note(first - 1, 10);
    world.nodes[1].open.push_back(early.clone());
    world.tell(1, (1, 0), Log::Append(early)).unwrap();
    assert_eq!(world.nodes[1].lost, 1);
    assert!(world.nodes[1].epoch >= first - 1);
    world.start(0).unwrap();
    seal(&mut world, &[0, 10]);
    world.converged().unwrap();
    assert_eq!(world.nodes[0].leader, Some(NodeId(1)));
}

#[test]
fn a_primary_does_not_lead_before_it_has_sealed_what_it_was_given() {
    let mut world = world(2);
    world.append(0, 10).unwrap();
    run_disk(&mut world, 0);
    world.fence(1).unwrap();
    world.gather(1).unwrap();
    world.leadership_record_at_once(1).unwrap();
    assert_eq!((world.nodes[1].entries, world.nodes[1].leads), (0, false));
    run_disk(&mut world, 1);
    assert_eq!((world.nodes[1].entries, world.nodes[1].leads), (1, true));
    // Others may know of any epoch before its first: it has sealed them all.
    assert_eq!(world.nodes[1].sealed.last(), Some(&world.nodes[1].epoch));
    assert!(world.nodes[1].epoch >= world.leadership_records.leadership_records[0].first.0 - 1);
}

#[test]
fn who_asks_twice_is_not_sent_everything_twice() {
    let mut world = world(2);
    (0..2).for_each(|node| world.crash(node));
    world.kept_bytes = 100_000;
    world.start(0).unwrap();
    world.crash(1);
    seal(&mut world, &[200; 40]);
    let before = world.gauge(0, "ordain_ship_shipped_batches_total");
    world.start(1).unwrap();
    world.fire(1, ASK).unwrap();
    assert_eq!(on_link(&world, 1, 0), ["want 0", "want 0"]);
    // Both questions are answered, and the second answer comes when the first is on disk.
    while world.links.values().any(|link| !link.is_empty()) {
        world.deliver(1, 0).unwrap();
        world.deliver(1, 0).unwrap();
        world.deliver(0, 1).unwrap();
        run_disk(&mut world, 1);
    }
    world.settle().unwrap();
    world.converged().unwrap();
    let shipped = world.gauge(0, "ordain_ship_shipped_batches_total") - before;
    assert!((40.0..50.0).contains(&shipped), "{shipped} batches for 40");
}

#[test]
fn what_stands_in_the_files_and_is_taken_back_is_not_shipped() {
    let mut world = world(2);
    (0..2).for_each(|node| world.crash(node));
    (world.kept_bytes, world.piece) = (100, 100_000);
    world.start(0).unwrap();
    seal(&mut world, &[200; 5]);
    world.kept_bytes = 100_000;
    world.start(1).unwrap();
    [10, 10, 400].into_iter().for_each(|size| world.append(0, size).unwrap());
    world.disk(0).unwrap();
    world.deliver(1, 0).unwrap();
    assert_eq!(world.nodes[0].requests.len(), 2, "one that writes two batches and one that reads");
    // The first of the two reaches the disk, but there is no space for all of the second.
    let ops = world.nodes[0].disk.ops();
    world.nodes[0].disk.set_full_from(Some(ops));
    (0..2).for_each(|_| world.disk(0).unwrap());
    assert_eq!(world.nodes[0].rejected, 0, "it stands there still");
    world.nodes[0].disk.set_full_from(None);
    world.settle().unwrap();
    world.wait().unwrap();
    assert_eq!((world.nodes[0].rejected, world.nodes[1].entries), (2, 6));
    seal(&mut world, &[10]);
    world.converged().unwrap();
}

#[test]
fn who_knows_of_a_term_before_its_primary_does_is_answered_when_that_knows() {
    let mut world = world(2);
    seal(&mut world, &[10]);
    world.fence(1).unwrap();
    world.settle().unwrap();
    let term = world.leadership_records.leadership_records[0].latest();
    world.leadership_records.version += 1;
    let leadership_record = &mut world.leadership_records.leadership_records[0];
    (leadership_record.term, leadership_record.primary, leadership_record.fence) = (term, NodeId(1), None);
    world.tell_leadership_records(0, true).unwrap();
    assert_eq!(on_link(&world, 0, 1), ["want 1"]);
    world.settle().unwrap();
    assert_eq!(world.gauge(1, "ordain_ship_live_members"), 0.0);
    world.tell_leadership_records(1, true).unwrap();
    assert_eq!(world.gauge(1, "ordain_ship_live_members"), 1.0);
}

#[test]
fn who_has_to_be_rebuilt_is_sent_nothing_and_takes_nothing() {
    let mut world = world(2);
    let eviction = Eviction { incarnation: 0, without_log: false };
    world
        .configuration_entry(|leadership_records| leadership_records.evicted = [(NodeId(1), eviction)].into())
        .unwrap();
    seal(&mut world, &[10]);
    world.tell_leadership_records(0, true).unwrap();
    assert_eq!((world.nodes[1].entries, world.nodes[0].kept.1.len(), world.nodes[1].leader), (0, 0, None));
    let arrival = Arrival { incarnation: 1, life: 1 };
    world
        .configuration_entry(|leadership_records| leadership_records.arrivals = [(NodeId(1), arrival)].into())
        .unwrap();
    world.settle().unwrap();
    world.wait().unwrap();
    world.converged().unwrap();
}

#[test]
fn members_that_keep_nothing_ship_from_memory() {
    let mut world = World::new(2, 1).unwrap();
    world.in_memory = true;
    (0..2).for_each(|node| world.crash(node));
    (0..2).for_each(|node| world.start(node).unwrap());
    world.settle().unwrap();
    seal(&mut world, &[10, 0, 10]);
    assert_eq!(world.nodes[0].sealed, [1, 2, 3]);
    world.converged().unwrap();
}

/// What all have checkpoints of is let go; who needs it is told so, and gets one.
#[test]
fn a_member_that_needs_what_was_trimmed_is_told_so_and_begins_after_a_checkpoint() {
    let mut world = world(3);
    seal(&mut world, &[300; 60]);
    (0..3).for_each(|node| world.checkpoint(node));
    seal(&mut world, &[300; 10]);
    let segments = |world: &World| world.nodes[0].disk.list().unwrap().len();
    let before = segments(&world);
    world.trim().unwrap();
    world.settle().unwrap();
    assert!(segments(&world) + 3 < before, "{} of {before}", segments(&world));
    world.crash(2);
    world.wipe(2);
    world.start(2).unwrap();
    world.settle().unwrap();
    let behind = world.nodes[2].behind.unwrap();
    assert_eq!((world.nodes[2].entries, world.gauge(2, "ordain_log_behind_epoch")), (0, behind as f64));
    assert!(behind <= world.trimmed && behind > world.trimmed - 30, "{behind} of {}", world.trimmed);
    // It asks again, and nothing else comes of it; the others go on.
    seal(&mut world, &[300; 5]);
    world.wait().unwrap();
    assert_eq!((world.nodes[2].entries, world.nodes[1].entries), (0, 75));
    assert!(world.copy_checkpoint(2).unwrap());
    world.settle().unwrap();
    world.converged().unwrap();
    assert_eq!(world.gauge(2, "ordain_log_behind_epoch"), 0.0);
    // Its log says where it begins: whoever asks it for more is told.
    world.fence(2).unwrap();
    world.gather(2).unwrap();
    world.leadership_record(2).unwrap();
    world.crash(1);
    world.wipe(1);
    world.start(1).unwrap();
    world.settle().unwrap();
    assert!(world.nodes[1].behind.is_some() && world.nodes[1].entries == 0);
    world.checkpoint(2);
    assert!(world.copy_checkpoint(1).unwrap());
    world.settle().unwrap();
    seal(&mut world, &[300; 3]);
    world.converged().unwrap();
}

/// What only the primary has a checkpoint of stays for its members as long as it is not too much.
#[test]
fn a_log_is_trimmed_for_a_member_that_is_away_once_it_is_too_long() {
    for (keep_bytes, is_too_long) in [(1 << 20, false), (2000, true)] {
        let mut world = World::new(2, 1).unwrap();
        world.keep_bytes = keep_bytes;
        (0..2).for_each(|node| world.crash(node));
        (0..2).for_each(|node| world.start(node).unwrap());
        world.settle().unwrap();
        world.crash(1);
        seal(&mut world, &[300; 60]);
        world.checkpoint(0);
        let covered = Covered::by_own(Epoch(world.nodes[0].checkpoint));
        world.tell(0, (0, 6), Log::Trim(covered)).unwrap();
        world.settle().unwrap();
        world.start(1).unwrap();
        world.settle().unwrap();
        world.wait().unwrap();
        assert_eq!(world.nodes[1].behind.is_some(), is_too_long);
        assert_eq!(world.copy_checkpoint(1).unwrap(), is_too_long);
        world.settle().unwrap();
        assert_eq!(world.nodes[1].entries, 60);
    }
}

/// What a member is read from the files it is read to the end, although a checkpoint covers it.
#[test]
fn what_a_member_is_being_read_is_not_trimmed_if_it_is_not_far_behind() {
    for (kept_bytes, stays) in [(1 << 20, true), (500, false)] {
        let mut world = World::new(2, 1).unwrap();
        world.kept_bytes = 500;
        world.crash(0);
        world.start(0).unwrap();
        world.settle().unwrap();
        world.crash(1);
        seal(&mut world, &[300; 60]);
        world.crash(0);
        world.kept_bytes = kept_bytes;
        world.start(0).unwrap();
        world.settle().unwrap();
        world.start(1).unwrap();
        while world.nodes[1].entries < 5 {
            assert!(world.step().unwrap());
        }
        world.checkpoint(0);
        let epoch = Epoch(world.nodes[0].checkpoint);
        world.tell(0, (0, 6), Log::Trim(Covered::by_all(epoch))).unwrap();
        world.settle().unwrap();
        world.wait().unwrap();
        assert_eq!(world.nodes[1].entries == 60, stays, "{}", world.nodes[1].entries);
        assert_eq!(world.nodes[1].behind.is_none(), stays);
    }
}

/// Wherever the machine stops, the log opens and has everything after what was to go.
#[test]
fn a_log_that_is_trimmed_when_the_machine_stops_has_the_rest() {
    let mut first_epochs = std::collections::BTreeSet::new();
    for stops in 0..40 {
        let mut world = World::new(1, stops).unwrap();
        seal(&mut world, &[300; 60]);
        world.checkpoint(0);
        let checkpoint = world.nodes[0].checkpoint;
        seal(&mut world, &[300; 5]);
        world.trim().unwrap();
        let mut left = stops;
        'stopped: while let Some(request) = world.nodes[0].requests.pop_front() {
            for op in &request.ops {
                if left == 0 {
                    break 'stopped;
                }
                left -= 1;
                world.nodes[0].disk.apply(op).unwrap();
            }
            world.event(0, Event::Disk(DiskDone { token: request.token, result: Ok(()) })).unwrap();
        }
        world.crash(0);
        let found = ordain_log::verify(&world.nodes[0].disk, None).unwrap();
        assert!(found.starts_after.0 <= checkpoint);
        first_epochs.insert(found.starts_after);
        world.start(0).unwrap();
        assert_eq!(world.nodes[0].entries, 65);
        world.settle().unwrap();
        seal(&mut world, &[10]);
        world.converged().unwrap();
    }
    assert!(first_epochs.len() > 3, "{first_epochs:?}");
}

#[test]
fn a_log_without_members_is_told_nothing_of_them() {
    let here = |role| Address { node: NodeId(0), role };
    let mut log: InputLog<Notes, Message> =
        InputLog::new(LogSettings::default(), None, here(0), vec![here(2)]);
    let mut out = Outbox::default();
    let message = Ship::Want { term: 1, after: Epoch(0) }.into();
    log.handle(Default::default(), Event::Message { from: here(1), message }, &mut out);
    assert!(out.halt.is_some_and(|reason| reason.contains("no members")));
}

/// A primary asks no quorum, so it cannot tell whether the configuration service has given it up.
#[test]
fn who_ships_its_log_confirms_nothing() {
    let mut world = world(2);
    let primary = world.primary();
    world.ask(primary, 1).unwrap();
    world.ask(1 - primary, 2).unwrap();
    assert_eq!([primary, 1 - primary].map(|node| world.nodes[node].not_confirmed.clone()), [[1], [2]]);
}
