//! Checkpoints that a node makes: pieces written, sealed with the other partitions, kept, and trimmed behind.

use super::*;

#[test]
fn what_all_shards_gave_is_in_one_file() {
    let mut world = World::new(1, 1);
    world.save(0, Epoch(9));
    world.settle();
    let layout = world.topology.layout.clone();
    let header = Header::new(b"cluster", &layout, ordain_model::PartitionId(0), Epoch(9));
    let (mut records, mut inputs) = (0, 0);
    let totals = read(world.disk(0), &header, |item| {
        match item {
            Item::Record { key, cell, version, .. } => {
                assert_eq!((cell.string(), version), (Some(key), Gsn(9)));
                records += 1;
            }
            Item::Input(bytes) => {
                assert_eq!(bytes, b"input");
                inputs += 1;
            }
            Item::Outcome(_) | Item::Map(_) => {}
        }
        Ok(())
    });
    // Both shards have given the same: two of three pieces of 40 records.
    assert_eq!((totals.map(|totals| totals.records), records, inputs), (Ok(240), 240, 1));
    assert_eq!(world.nodes[0].role.newest(), Some((Epoch(9), Millis(7_000))));
    assert_eq!(world.gauge(0, "ordain_checkpoint_epoch"), 9.0);
}

#[test]
fn a_shard_is_told_of_each_piece_when_it_is_written_and_not_before() {
    let mut world = World::new(1, 1);
    let taken = |world: &World| {
        world
            .sent
            .iter()
            .filter(|(to, saving)| *to == at(0, SHARDS[0]) && matches!(saving, Saving::Taken(Epoch(9))))
            .count()
    };
    for part in 0..2 {
        let piece = world.piece(0, Epoch(9), part);
        world.tell(at(0, SHARDS[0]), Saving::Piece { epoch: Epoch(9), piece });
    }
    assert_eq!(taken(&world), 0);
    // The header first, then what had gathered by then.
    assert!(world.work(0));
    assert_eq!(taken(&world), 0);
    assert!(world.work(0));
    assert_eq!((taken(&world), world.work(0)), (2, false));
}

#[test]
fn it_is_complete_once_every_partition_has_one() {
    let mut world = World::new(3, 1);
    world.save(0, Epoch(9));
    world.save(1, Epoch(9));
    world.settle();
    assert_eq!((world.complete(0), world.complete(1), world.complete(2)), (vec![], vec![], vec![]));
    assert_eq!(world.gauge(0, "ordain_checkpoint_saved_epoch"), 9.0);
    // Said again, it is no more than it was.
    world.meet(0, 1);
    world.meet(1, 0);
    world.settle();
    assert_eq!(world.complete(0), [] as [u64; 0]);
    world.save(2, Epoch(9));
    world.settle();
    assert_eq!((world.complete(0), world.complete(1), world.complete(2)), (vec![9], vec![9], vec![9]));
}

#[test]
fn it_is_saved_once_what_came_in_is_on_disk() {
    let mut world = World::new(2, 1);
    world.save(0, Epoch(9));
    // The sequencer has nothing to add, and the disk does what it is asked for.
    while world.work(0) {}
    let piece = Piece::input(Vec::new());
    world.tell(at(0, SEQUENCER), Saving::Piece { epoch: Epoch(9), piece });
    world.tell(at(0, SEQUENCER), Saving::Last(Epoch(9)));
    while world.work(0) {}
    assert!(
        world.sent.iter().any(|(to, s)| *to == at(0, EXCHANGE) && matches!(s, Saving::Covered(Epoch(9))))
    );
    assert_eq!((world.mail.len(), world.gauge(0, "ordain_checkpoint_saved_epoch")), (0, 0.0));
    world.tell(at(0, EXCHANGE), Saving::Covered(Epoch(9)));
    assert_eq!((world.mail.len(), world.gauge(0, "ordain_checkpoint_saved_epoch")), (1, 9.0));
}

#[test]
fn a_report_that_was_lost_is_made_again() {
    let mut world = World::new(2, 1);
    world.save(0, Epoch(9));
    world.settle();
    world.mail.clear();
    world.save(1, Epoch(9));
    while world.work(1) {}
    world.restart(0);
    world.settle();
    // Node 0 does not go on with one from before it was stopped.
    assert_eq!((world.complete(0), world.complete(1)), (vec![], vec![]));
    world.save(0, Epoch(12));
    world.settle();
    // One that has a later one will not ask for anything before that.
    assert_eq!((world.complete(0), world.complete(1)), (vec![], vec![9]));
    world.save(1, Epoch(12));
    world.settle();
    assert_eq!((world.complete(0), world.complete(1)), (vec![12], vec![9, 12]));
}

#[test]
fn only_the_newest_are_kept() {
    let mut world = World::new(1, 1);
    for epoch in [3, 5, 8, 13].map(Epoch) {
        world.save(0, epoch);
        world.settle();
    }
    assert_eq!((world.complete(0), world.sound(0)), (vec![8, 13], vec![8, 13]));
    assert_eq!(world.files(0).len(), 4);
    world.restart(0);
    assert_eq!(world.complete(0), [8, 13]);
    // A checkpoint that came to no more than half is gone when the next begins.
    let piece = world.piece(0, Epoch(20), 0);
    world.tell(at(0, SHARDS[0]), Saving::Piece { epoch: Epoch(20), piece });
    while world.work(0) {}
    assert_eq!(world.files(0).len(), 5);
    world.restart(0);
    world.save(0, Epoch(21));
    world.settle();
    assert_eq!((world.complete(0), world.files(0).len()), (vec![13, 21], 4));
}

#[test]
fn the_log_is_trimmed_up_to_the_oldest_that_is_kept_here_and_that_all_members_have() {
    let mut world = World::new(1, 1);
    for (epoch, trimmed) in [(3, 0), (5, 1), (8, 2)] {
        world.save(0, Epoch(epoch));
        world.settle();
        assert_eq!(world.trimmed.len(), trimmed);
    }
    assert_eq!(world.trimmed, [(at(0, LOG), 3, 3), (at(0, LOG), 5, 5)]);
    // Of members, one is behind: it may be trimmed for its sake no more, if that is too much.
    let mut world = World::new(2, 2);
    let both = |world: &mut World, first: u16, epoch: u64| {
        (first..first + 2).for_each(|node| world.save(node, Epoch(epoch)));
        world.settle();
    };
    [3, 5, 8].into_iter().for_each(|epoch| both(&mut world, 0, epoch));
    let told = |node, by_all, by_own| [(at(node, LOG), by_all, by_own), (at(node, EXCHANGE), by_all, by_own)];
    let mut trimmed = std::mem::take(&mut world.trimmed);
    trimmed.sort();
    let wanted = |by_all, firsts: &[u64]| {
        let both = |by_own| [told(0, by_all, by_own), told(1, by_all, by_own)].concat();
        let mut wanted: Vec<_> = firsts.iter().flat_map(|by_own| both(*by_own)).collect();
        wanted.sort();
        wanted
    };
    assert_eq!(trimmed, wanted(0, &[3, 5]));
    both(&mut world, 2, 4);
    assert_eq!(world.complete(2), [4]);
    let mut trimmed = std::mem::take(&mut world.trimmed);
    trimmed.sort();
    assert_eq!(trimmed, wanted(4, &[5]));
}

#[test]
fn what_is_refused_at_a_start_is_not_kept() {
    let mut world = World::new(1, 1);
    for epoch in [3, 5].map(Epoch) {
        world.save(0, epoch);
        world.settle();
    }
    let found = list(world.disk(0)).unwrap();
    world.nodes[0].role = Checkpointer::new(settings(&world.topology, 0), &found, &[Epoch(5)]);
    assert_eq!(world.complete(0), [3]);
    world.save(0, Epoch(7));
    world.settle();
    assert_eq!((world.complete(0), world.files(0).len()), (vec![3, 7], 4));
}

#[test]
fn one_that_a_shard_has_passed_by_is_not_waited_for() {
    let mut world = World::new(1, 1);
    let piece = world.piece(0, Epoch(3), 0);
    world.tell(at(0, SHARDS[0]), Saving::Piece { epoch: Epoch(3), piece });
    world.tell(at(0, SHARDS[0]), Saving::Last(Epoch(3)));
    world.settle();
    world.tell(at(0, SHARDS[0]), Saving::Last(Epoch(4)));
    // The other had executed both before the node was started.
    world.tell(at(0, SHARDS[1]), Saving::Past(Epoch(4)));
    world.settle();
    assert!(world.files(0).is_empty());
    assert_eq!(world.gauge(0, "ordain_checkpoint_given_up_total"), 2.0);
    world.tell(at(0, SHARDS[0]), Saving::Last(Epoch(4)));
    world.save(0, Epoch(5));
    world.settle();
    assert_eq!(world.complete(0), [5]);
}

#[test]
fn a_second_one_while_one_is_made_comes_to_nothing() {
    let mut world = World::new(1, 1);
    let piece = world.piece(0, Epoch(3), 0);
    world.tell(at(0, SHARDS[0]), Saving::Piece { epoch: Epoch(3), piece });
    world.tell(at(0, SHARDS[0]), Saving::Last(Epoch(3)));
    // This shard is done and takes part in the next, the other is not and does not.
    world.tell(at(0, SHARDS[0]), Saving::Last(Epoch(5)));
    world.tell(at(0, SHARDS[1]), Saving::Skipped(Epoch(5)));
    let dropped = |world: &World, epoch| {
        world.sent.iter().filter(|(_, s)| matches!(s, Saving::Dropped(e) if *e == Epoch(epoch))).count()
    };
    assert_eq!(dropped(&world, 5), 2);
    world.tell(at(0, SHARDS[1]), Saving::Last(Epoch(3)));
    world.settle();
    assert_eq!(world.complete(0), [3]);
    // The next may begin before the one before is written.
    world.save(0, Epoch(7));
    world.save(0, Epoch(8));
    world.settle();
    assert_eq!((world.complete(0), dropped(&world, 7), dropped(&world, 8)), (vec![7, 8], 0, 0));
    // Pieces that come late, for a checkpoint that was passed over, are turned away.
    world.tell(at(0, SHARDS[1]), Saving::Last(Epoch(6)));
    assert_eq!(dropped(&world, 6), 1);
    // One that a shard turns out not to take part in is given up.
    world.tell(at(0, SHARDS[0]), Saving::Last(Epoch(9)));
    world.tell(at(0, SHARDS[1]), Saving::Skipped(Epoch(9)));
    world.settle();
    assert_eq!((world.complete(0), dropped(&world, 9), world.files(0).len()), (vec![7, 8], 2, 4));
}

#[test]
fn a_disk_that_is_full_costs_the_checkpoint_and_no_more() {
    let mut world = World::new(1, 1);
    world.save(0, Epoch(3));
    world.settle();
    let ops = world.disk(0).ops();
    world.save(0, Epoch(5));
    world.settle();
    let last = world.disk(0).ops();
    let mut epoch = 6;
    for step in 0..last - ops {
        let from = world.disk(0).ops() + step;
        world.disk(0).set_full_from(Some(from));
        world.save(0, Epoch(epoch));
        world.settle();
        let was_full = world.disk(0).ops() > from;
        world.disk(0).set_full_from(None);
        let sound = world.sound(0);
        assert_eq!(sound, world.complete(0), "step {step}");
        assert!(sound.len() == 2 || !was_full, "step {step}: {sound:?}");
        if !sound.contains(&epoch) {
            assert_eq!(world.gauge(0, "ordain_checkpoint_failing"), 1.0);
            assert!(world.sent.iter().any(|(_, s)| matches!(s, Saving::Dropped(e) if e.0 == epoch)));
        }
        epoch += 1;
        // With space there is one again.
        world.save(0, Epoch(epoch));
        world.settle();
        assert_eq!(world.complete(0).last(), Some(&epoch));
        assert_eq!((world.files(0).len(), world.gauge(0, "ordain_checkpoint_failing")), (4, 0.0));
        epoch += 1;
    }
}

#[test]
fn a_crash_at_any_point_leaves_the_one_before_or_the_next() {
    let mut start = World::new(1, 1);
    for epoch in [3, 5].map(Epoch) {
        start.save(0, epoch);
        start.settle();
    }
    let (before, mut random) = (start.disk(0).clone(), Random(1));
    let (mut old, mut new) = (0, 0);
    for step in 0.. {
        for _ in 0..20 {
            let mut world = World::new(1, 1);
            *world.disk(0) = before.clone();
            world.restart(0);
            world.save(0, Epoch(8));
            // The node does what it does until the power goes, in the middle of a request or between two.
            let stop = before.ops() + step;
            let mut is_over = true;
            loop {
                let asked = std::mem::take(&mut world.sent);
                if asked.iter().any(|(_, saving)| matches!(saving, Saving::Begun(_))) {
                    world.tell(at(0, SEQUENCER), Saving::Last(Epoch(8)));
                }
                let Node { disk, requests, .. } = &mut world.nodes[0];
                let Some(request) = requests.pop_front() else { break };
                let left = stop.saturating_sub(disk.ops()) as usize;
                let (cut, whole) = (request.ops.len() > left, request.ops.len());
                let ops = request.ops.into_iter().take(left.min(whole)).collect();
                let done = carry_out(disk, &DiskRequest::new(request.token, ops));
                if cut {
                    is_over = false;
                    break;
                }
                world.handle(0, Event::Disk(done));
            }
            world.disk(0).crash(|| random.next());
            let sound = world.sound(0);
            assert!(sound.contains(&5) || sound.contains(&8), "step {step}: {sound:?}");
            let found = list(world.disk(0)).unwrap();
            for complete in found.iter().filter(|found| found.is_complete()) {
                assert!(
                    sound.contains(&complete.epoch.0),
                    "step {step}: {} is sealed and damaged",
                    complete.epoch
                );
            }
            match sound.last() {
                Some(8) => new += 1,
                _ => old += 1,
            }
            world.restart(0);
            world.save(0, Epoch(9));
            world.settle();
            assert_eq!(world.complete(0).last(), Some(&9), "step {step}");
            assert_eq!(world.files(0).len(), 4, "step {step}");
            if is_over {
                assert!(old > 100 && new > 20, "{old} old, {new} new");
                return;
            }
        }
    }
}

#[test]
fn one_that_is_cut_short_on_disk_is_no_checkpoint() {
    let mut world = World::new(1, 1);
    world.save(0, Epoch(3));
    world.settle();
    let file = file_name(Epoch(3));
    world.disk(0).apply(&DiskOp::SetLen { file: file.clone(), len: 600 }).unwrap();
    assert_eq!(
        verify(world.disk(0), Epoch(3)).map(|_| ()),
        Err(CheckpointError::Unfinished { file, len: 600 })
    );
}

#[test]
fn where_primaries_may_change_only_what_is_certain_is_sealed() {
    let mut world = World::new(1, 2);
    world.nodes.iter_mut().for_each(|node| node.role.settings.primaries_change = true);
    world.save(0, Epoch(5));
    world.settle();
    let say = |world: &mut World, epoch| {
        let message = Configuration::Stable(Epoch(epoch)).into();
        world.handle(0, Event::Message { from: at(0, 4), message });
        world.settle();
        world.complete(0)
    };
    assert_eq!(say(&mut world, 4), []);
    assert_eq!(say(&mut world, 5), [5]);
    // A node that begins again with a checkpoint lets its log decide whether it goes on from there.
    world.behind(0, 5);
    assert_eq!((&world.begun_again[..], &world.log_begins[..]), (&[][..], &[(0, 5)][..]));
}

#[test]
fn a_partition_that_needs_nothing_of_others_seals_alone() {
    let mut world = World::new(2, 1);
    world.save(0, Epoch(3));
    world.settle();
    assert_eq!(world.complete(0), [0; 0], "the other partition has none");
    for node in &mut world.nodes {
        node.role.settings.seals_alone = true;
    }
    world.save(0, Epoch(5));
    world.settle();
    assert_eq!((world.complete(0), world.complete(1)), (vec![3, 5], Vec::new()));
}
