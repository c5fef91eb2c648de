//! Checkpoints that a node gets from another member of its replication group.

use super::*;

#[test]
fn who_is_behind_gets_the_newest_checkpoint_of_a_member_and_begins_again() {
    let mut world = World::members(&[9, 12]);
    world.behind(1, 10);
    world.settle();
    assert!(world.has_begun_again(1) && !world.has_begun_again(0));
    assert_eq!((world.sound(1), world.complete(1)), (vec![12], vec![12]));
    let file = file_name(Epoch(12));
    let bytes = |world: &mut World, node| world.disk(node).read(&file, 0, 1 << 20).unwrap();
    let copied = bytes(&mut world, 1);
    assert!(copied.len() > 3 * PIECE && copied == bytes(&mut world, 0));
    world.restart(1);
    assert_eq!(world.nodes[1].role.newest(), Some((Epoch(12), Millis(7_000))), "it has its time too");
    // Its checkpoint is enough, once the node has begun with it.
    world.begun_again.clear();
    world.behind(1, 12);
    assert!(
        world.has_begun_again(1)
            && world.mail.iter().all(|(.., m)| !matches!(m, Message::Saving(Saving::Want { .. })))
    );
}

#[test]
fn a_node_that_cannot_begin_with_what_it_has_gets_a_checkpoint_of_another_member() {
    for (primaries_change, reach, without_log) in
        [(false, 10, false), (true, 10, true), (true, 12, false), (true, 15, false)]
    {
        let mut world = World::members(&[9, 12]);
        let lacking = NeedsCheckpoint { needed: Epoch(10), reach: Epoch(reach) };
        world.restart_needing(1, lacking, primaries_change);
        world.settle();
        assert_eq!(world.complete(1), [12]);
        let how = Rebuild { without_log, without_receive_journal: true };
        assert_eq!((&world.begun_again[..], &world.log_begins[..]), (&[(1, how)][..], &[][..]));
    }
}

#[test]
fn a_node_that_cannot_begin_asks_for_a_checkpoint_where_there_is_none_that_helps() {
    let mut world = World::members(&[9]);
    world.restart_needing(1, NeedsCheckpoint { needed: Epoch(10), reach: Epoch(10) }, false);
    world.settle();
    let wanted = |world: &World| {
        let is_wanted =
            |(to, saving): &&(Address, Saving)| *to == at(0, SEQUENCER) && matches!(saving, Saving::Wanted);
        world.sent.iter().filter(is_wanted).count()
    };
    assert_eq!((wanted(&world), &world.begun_again[..]), (0, &[][..]), "it has just been met");
    for looks in 1..=2 * WANT_EVERY as usize {
        world.handle(1, Event::Timer(LOOK));
        world.settle();
        assert_eq!(wanted(&world), looks.div_ceil(WANT_EVERY as usize), "it does not ask at each look");
    }
    world.save(0, Epoch(13));
    world.settle();
    assert!(world.has_begun_again(1), "it hears of the new one without being told to look");
    assert_eq!(world.complete(1), [13]);
}

#[test]
fn nobody_is_asked_for_what_nobody_has() {
    let mut world = World::members(&[]);
    world.meet(1, 0);
    world.meet(0, 1);
    world.settle();
    world.behind(1, 0);
    assert_eq!(world.gauge(1, "ordain_checkpoint_copying"), 0.0);
    let mut world = World::members(&[9]);
    world.behind(1, 10);
    world.settle();
    assert!(!world.has_begun_again(1) && world.sound(1).is_empty());
    assert_eq!(world.gauge(1, "ordain_checkpoint_copying"), 0.0);
    // Nor is a node of another partition.
    let mut world = World::new(2, 1);
    [0, 1].into_iter().for_each(|node| world.save(node, Epoch(9)));
    world.settle();
    world.restart(1);
    world.behind(1, 10);
    world.settle();
    assert!(!world.has_begun_again(1));
}

#[test]
fn wherever_the_machine_stops_there_is_all_of_it_or_none() {
    let mut whole = 0;
    for stops in 0..40 {
        let mut world = World::members(&[9]);
        world.behind(1, 9);
        let mut left = stops;
        'stopped: for _ in 0..1000 {
            world.work(0);
            world.deliver();
            let Some(request) = world.nodes[1].requests.pop_front() else { continue };
            let mut result = Ok(());
            for op in &request.ops {
                if left == 0 {
                    break 'stopped;
                }
                left -= 1;
                result = result.and_then(|()| world.disk(1).apply(op));
            }
            world.handle(1, Event::Disk(DiskDone { token: request.token, result }));
        }
        let mut random = Random(stops);
        world.disk(1).crash(|| random.next());
        let found = list(world.disk(1)).unwrap();
        let complete = found.iter().filter(|found| found.is_complete()).count();
        assert_eq!(world.sound(1).len(), complete, "what counts is sound");
        whole += complete;
        world.begun_again.clear();
        world.restart(1);
        world.settle();
        world.behind(1, 9);
        world.settle();
        assert!(world.has_begun_again(1));
        assert_eq!(world.sound(1), [9]);
    }
    assert!((1..40).contains(&whole), "{whole}");
}

#[test]
fn a_copy_that_is_damaged_is_thrown_away_and_asked_for_again_after_a_while() {
    let mut world = World::members(&[9]);
    world.behind(1, 9);
    world.settle();
    assert!(world.has_begun_again(1));
    let wants = |world: &World| {
        world.mail.iter().filter(|(.., m)| matches!(m, Message::Saving(Saving::Want { .. }))).count()
    };
    world.begun_again.clear();
    world.restart_refusing(1, &[Epoch(9)]);
    world.handle(1, Event::Start);
    world.settle();
    assert_eq!((world.complete(1), world.gauge(1, "ordain_checkpoint_failing")), (vec![], 1.0));
    for _ in 0..10 {
        world.behind(1, 9);
        assert_eq!(wants(&world), 0, "it has just been found damaged");
    }
    world.handle(1, Event::Timer(ASK_AGAIN));
    world.behind(1, 9);
    assert_eq!(wants(&world), 1);
    world.settle();
    assert!(world.has_begun_again(1));
    assert_eq!(world.sound(1), [9]);
    // Another one is not waited for.
    world.begun_again.clear();
    world.restart_refusing(1, &[Epoch(9)]);
    world.save(0, Epoch(12));
    world.settle();
    world.behind(1, 9);
    world.settle();
    assert!(world.has_begun_again(1));
    assert_eq!(world.sound(1), [12]);
}

#[test]
fn one_that_waits_for_the_exchange_holds_up_none_after_it() {
    let mut world = World::new(2, 1);
    world.holds_covered = true;
    world.save(0, Epoch(3));
    world.settle();
    assert_eq!(world.gauge(0, "ordain_checkpoint_saved_epoch"), 0.0);
    world.save(0, Epoch(5));
    world.settle();
    // Nobody stands still for it: all of the second is written too, and the first is not waited for any more.
    assert_eq!(world.files(0), [file_name(Epoch(5))]);
    world.tell(at(0, EXCHANGE), Saving::Covered(Epoch(3)));
    assert_eq!(world.gauge(0, "ordain_checkpoint_saved_epoch"), 0.0);
    world.tell(at(0, EXCHANGE), Saving::Covered(Epoch(5)));
    assert_eq!(world.gauge(0, "ordain_checkpoint_saved_epoch"), 5.0);
}

#[test]
fn a_member_that_is_lost_or_has_removed_it_is_asked_for_another_later() {
    let mut world = World::members(&[9]);
    world.behind(1, 9);
    for _ in 0..6 {
        world.deliver();
        world.work(0);
        world.work(1);
    }
    assert_eq!(world.gauge(1, "ordain_checkpoint_copying"), 1.0);
    let change = PeerChange { node: NodeId(0), state: PeerState::Lost };
    world.handle(1, Event::Message { from: at(1, 3), message: change.into() });
    assert_eq!(world.gauge(1, "ordain_checkpoint_copying"), 0.0);
    world.settle();
    assert!(!world.has_begun_again(1) && world.sound(1).is_empty());
    // Two more, and the member keeps no more than that.
    world.behind(1, 9);
    world.deliver();
    for epoch in [12, 15] {
        world.save(0, Epoch(epoch));
    }
    world.settle();
    assert_eq!(world.complete(0), [12, 15]);
    world.behind(1, 9);
    world.settle();
    assert!(world.has_begun_again(1));
    assert_eq!(world.sound(1).last(), Some(&15));
}

#[test]
fn a_full_disk_costs_the_copy_and_no_more() {
    let mut world = World::members(&[9]);
    world.disk(1).set_full_from(Some(2));
    world.behind(1, 9);
    world.settle();
    assert!(!world.has_begun_again(1));
    assert_eq!(world.gauge(1, "ordain_checkpoint_failing"), 1.0);
    world.disk(1).set_full_from(None);
    world.behind(1, 9);
    world.settle();
    assert!(world.has_begun_again(1));
    assert_eq!(world.sound(1), [9]);
}
