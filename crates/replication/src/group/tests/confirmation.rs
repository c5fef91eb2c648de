//! A leader confirms that it leads by a quorum round (R-CONFIRM of the commit family).

use ordain_role::{Bugs, Event};
use raft::StateRole;

use super::world::{Answers, World};

/// A group at rest that node 0 leads. Every message takes one millisecond and every disk request two.
fn at_rest(members: usize) -> World {
    let mut world = World::new(members, 1, Bugs::NONE);
    (world.delay, world.disk_delay) = ((1000, 1000), (2000, 2000));
    world.run_until(30_000_000, World::is_settled).unwrap();
    world.run(500_000).unwrap();
    assert_eq!(world.leader(), Some(0));
    world
}

const fn answers(confirmed: usize, refused: usize) -> Answers {
    Answers { confirmed, refused }
}

#[test]
fn a_leader_is_confirmed_within_a_round_and_without_its_disk() {
    for members in [3, 5] {
        let mut world = at_rest(members);
        world.transcript = Some(String::new());
        world.ask(0).unwrap();
        world.run(1_900).unwrap();
        assert_eq!(world.answers, answers(0, 0), "nothing has come back yet");
        world.run(200).unwrap();
        assert_eq!(world.answers, answers(1, 0));
        let transcript = world.transcript.take().unwrap();
        assert!(!transcript.contains("disk"), "{transcript}");
    }
}

/// Messages of a confirmation: 2 * (members - 1) of a round, whatever the number of questions in it.
#[test]
fn questions_that_come_while_a_round_is_under_way_share_the_next() {
    let mut world = at_rest(3);
    let (rounds, heartbeats) = (world.gauge(0, "ordain_group_confirm_rounds_total"), world.heartbeats);
    for _ in 0..1000 {
        world.ask(0).unwrap();
        world.run(1).unwrap();
    }
    world.run(10_000).unwrap();
    assert_eq!(world.answers, answers(1000, 0));
    assert_eq!(world.gauge(0, "ordain_group_confirm_rounds_total") - rounds, 2.0);
    assert_eq!(world.gauge(0, "ordain_group_confirmed_total"), 1000.0);
    // Two rounds, and one heartbeat that was due anyway: 0.012 messages a question.
    let spent = world.heartbeats - heartbeats;
    assert!((8..=12).contains(&spent), "{spent} messages");
}

#[test]
fn a_node_that_does_not_lead_says_so_at_once() {
    let mut world = at_rest(3);
    world.ask(1).unwrap();
    assert_eq!(world.answers, answers(0, 1));
    world.event(0, Event::Stop).unwrap();
    world.ask(0).unwrap();
    assert_eq!(world.answers, answers(0, 2), "it stops");
}

#[test]
fn a_leader_alone_in_its_group_needs_nobody() {
    let mut world = at_rest(1);
    world.ask(0).unwrap();
    assert_eq!(world.answers, answers(1, 0));
}

#[test]
fn a_round_goes_on_when_its_messages_are_lost() {
    let mut world = at_rest(3);
    world.set_cut(0, true);
    world.ask(0).unwrap();
    world.run(5_000).unwrap();
    assert_eq!(world.answers, answers(0, 0));
    world.set_cut(0, false);
    world.run(50_000).unwrap();
    assert_eq!(world.answers, answers(1, 0));
}

/// Its clock is so slow that it still takes itself for the leader when another has been elected.
#[test]
fn a_deposed_leader_is_not_confirmed() {
    let mut world = at_rest(3);
    world.nodes[0].pace = 20;
    world.set_cut(0, true);
    world.ask(0).unwrap();
    world.run_until(1_000_000, |world| world.nodes[1].leads || world.nodes[2].leads).unwrap();
    let new = if world.nodes[1].leads { 1 } else { 2 };
    world.propose(new, 1, 10).unwrap();
    world.run(20_000).unwrap();
    assert!(world.nodes[0].leads && world.agreed.len() == 1);
    world.ask(0).unwrap();
    world.ask(new).unwrap();
    world.run(20_000).unwrap();
    assert_eq!(world.answers, answers(1, 0), "the new one's alone");
    world.set_cut(0, false);
    world.run(300_000).unwrap();
    assert_eq!(world.answers, answers(1, 2));
}

/// The crate `raft` would drop a read index before an entry of the leader's term is agreed on.
#[test]
fn a_question_before_the_beginning_of_the_term_waits_for_it() {
    let mut world = at_rest(3);
    world.stop(0, true);
    let is_elected = |world: &World| {
        (1..3).find(|node| {
            let log = world.nodes[*node].log.as_ref();
            log.is_some_and(|log| log.raft.raft.state == StateRole::Leader)
        })
    };
    let begun = world.time;
    while is_elected(&world).is_none() && world.time - begun < 1_000_000 {
        world.run(100).unwrap();
    }
    let new = is_elected(&world).unwrap();
    assert!(!world.nodes[new].leads);
    world.ask(new).unwrap();
    assert_eq!(world.answers, answers(0, 0));
    world.run_until(20_000, |world| world.nodes[new].leads).unwrap();
    world.run(3_000).unwrap();
    assert_eq!(world.answers, answers(1, 0));
}

/// Others have agreed and handed on what the leader's own disk has not taken yet.
#[test]
fn a_confirmation_comes_after_what_others_have_handed_on() {
    let mut world = at_rest(3);
    world.disk_delay = (200_000, 200_000);
    world.propose(0, 1, 10).unwrap();
    world.disk_delay = (2000, 2000);
    world.run(100_000).unwrap();
    assert_eq!((world.agreed.len(), world.nodes[0].seen), (1, 0));
    world.ask(0).unwrap();
    world.run(50_000).unwrap();
    assert_eq!(world.answers, answers(0, 0));
    world.run(60_000).unwrap();
    assert_eq!((world.answers, world.nodes[0].seen), (answers(1, 0), 1));
}

#[test]
fn a_leader_with_a_full_disk_is_not_confirmed() {
    let mut world = at_rest(3);
    world.set_cut(0, true);
    world.ask(0).unwrap();
    world.nodes[0].disk.set_full_from(Some(0));
    world.propose(0, 1, 10).unwrap();
    world.run(10_000).unwrap();
    assert_eq!(world.answers, answers(0, 1));
}
