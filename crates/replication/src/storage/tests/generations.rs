//! Storage nodes that have lost their disks, and regions that begin: decision 57.

use ordain_role::{Bug, Bugs};

use super::scenarios::{assert_golden, at_rest, fate, settle, work};
use super::world::{Fate, Region, World};
use crate::storage::StorageMode;

const FULL: Region = Region { mode: StorageMode::Full, ..Region::new(2, 3) };

/// The obstacle that a server tells of; empty if there is none.
fn obstacle(world: &World, server: usize) -> &str {
    world.nodes[server].obstacle.as_deref().unwrap_or_default()
}

/// The replicas that count, by their own account.
fn counted(world: &World) -> usize {
    world.replicas().filter(|replica| world.gauge(*replica, "ordain_storage_is_counted") == 1.0).count()
}

/// A region waits for all its replicas, names the one that it has not met, and begins with it.
#[test]
fn a_region_begins_when_all_its_replicas_have_met() {
    for mode in [StorageMode::Quorum, StorageMode::Full] {
        let mut world = World::new(Region { mode, ..Region::new(1, 3) }, 1, Bugs::NONE);
        (world.delay, world.disk_delay) = ((1000, 1000), (2000, 2000));
        world.transcript = Some(String::new());
        world.run(0).unwrap();
        world.stop(3, true);
        world.run(3_000_000).unwrap();
        assert_eq!((world.leader(), counted(&world)), (None, 0));
        assert!(obstacle(&world, 0).contains("it has not begun") && obstacle(&world, 0).contains("node 3"));
        assert_eq!(world.gauge(0, "ordain_storage_unmet{replica=\"2\"}"), 1.0);
        world.start(3).unwrap();
        settle(&mut world);
        assert_eq!((obstacle(&world, 0), counted(&world)), ("", 3));
        assert_golden(&mut world, "founding", include_str!("scripts/founding.txt"));
    }
}

/// A server that starts while a replica is dead, with all that count required, leaves that one out after the grace.
#[test]
fn in_full_mode_a_replica_that_is_dead_when_the_server_starts_is_left_out() {
    let mut world = at_rest(Region { mode: StorageMode::Full, ..Region::new(1, 3) });
    for node in [0, 3] {
        world.stop(node, true);
    }
    world.start(0).unwrap();
    world.run_until(4_000_000, |world| world.leader() == Some(0)).unwrap();
    work(&mut world, 1, 10);
    assert_eq!(world.gauge(0, "ordain_storage_configuration"), 2.0);
    assert!(world.nodes[0].open.is_empty());
    world.start(3).unwrap();
    settle(&mut world);
    world.run(1_000_000).unwrap();
    assert_eq!(world.gauge(0, "ordain_storage_configuration"), 3.0);
}

/// An emptied replica gets everything, a line admits it, and only then does it count.
#[test]
fn an_emptied_replica_counts_once_a_majority_without_it_has_said_so() {
    let mut world = at_rest(Region::new(1, 3));
    work(&mut world, 2, 10);
    world.transcript = Some(String::new());
    world.lose_disk(3);
    // The others must have the line.
    world.set_cut(2);
    world.start(3).unwrap();
    world.run(100_000).unwrap();
    let id = world.append(0, 1, 10).unwrap();
    world.run(400_000).unwrap();
    assert_eq!((fate(&world, id), world.gauge(3, "ordain_storage_is_counted")), (None, 0.0));
    world.heal_links();
    world.run(400_000).unwrap();
    assert_eq!((fate(&world, id), counted(&world)), (Some(Fate::Logged), 3));
    assert_golden(&mut world, "emptied", include_str!("scripts/emptied.txt"));
}

/// An entry that the first two of three replicas have. The first of them is emptied and the second is down; a server that stands has
/// the promises of the first and of the third, which has never had the entry.
fn with_one_copy(bugs: Bugs) -> (World, u64) {
    let mut world = World::new(Region::new(2, 3), 1, bugs);
    (world.delay, world.disk_delay) = ((1000, 1000), (2000, 2000));
    settle(&mut world);
    world.set_cut(4);
    world.set_cut(1);
    let leader = world.leader().unwrap();
    let id = world.append(leader, 1, 10).unwrap();
    world.run(50_000).unwrap();
    assert_eq!(fate(&world, id), Some(Fate::Logged));
    world.lose_disk(2);
    for node in [0, 3] {
        world.stop(node, true);
        // What it has sent does not come any more.
        world.break_stream(node, 4);
        world.break_stream(node, 1);
    }
    world.heal_links();
    world.start(2).unwrap();
    (world, id)
}

#[test]
fn what_an_emptied_replica_has_forgotten_is_waited_for() {
    let (mut world, id) = with_one_copy(Bugs::NONE);
    world.run(5_000_000).unwrap();
    assert_eq!(world.leader(), None, "one of three has kept what it had, and the other one is down");
    world.start(3).unwrap();
    world.start(0).unwrap();
    settle(&mut world);
    assert_eq!((fate(&world, id), counted(&world)), (Some(Fate::Logged), 3));
}

#[test]
fn a_server_that_counts_an_emptied_replica_is_found_out() {
    let (mut world, _) = with_one_copy(Bugs::NONE.with(Bug::CountForgetful));
    let found = world.run_until(10_000_000, |world| world.leader() == Some(1)).and_then(|_| {
        world.append(1, 1, 10)?;
        world.run(50_000)?;
        [0, 3].into_iter().try_for_each(|node| world.start(node))?;
        world.run_until(10_000_000, World::is_settled)
    });
    let found = found.unwrap_err();
    assert!(!found.contains("come to pass"), "{found}");
}

/// Each disk is lost in its turn, the servers' lives among them; what was answered is kept.
#[test]
fn all_disks_may_be_lost_one_after_the_other() {
    for (region, with_server) in
        [(Region::new(2, 3), false), (Region::new(2, 3), true), (FULL, false), (FULL, true)]
    {
        let mut world = at_rest(region);
        for replica in [2, 3, 4, 2] {
            work(&mut world, 3, 300);
            let leader = world.leader().unwrap();
            world.lose_disk(replica);
            if with_server {
                // The server that comes next has not met the lost one.
                world.stop(leader, true);
            }
            world.run(300_000).unwrap();
            world.start(replica).unwrap();
            world.run(300_000).unwrap();
            world.start(leader).unwrap();
            world.run_until(20_000_000, |world| world.is_settled() && counted(world) == 3).unwrap();
        }
        // Nobody has what was there at first, and all of it is there.
        for server in [0, 1] {
            world.stop(server, true);
            world.start(server).unwrap();
        }
        settle(&mut world);
        assert_eq!(world.agreed.len(), 12);
    }
}

/// Two disks of three lost at once: nobody leads, nothing begins anew, and the lost ones are named. It goes on if one is brought back.
#[test]
fn two_disks_lost_at_once_are_named_and_end_the_region() {
    for region in [Region::new(2, 3), FULL] {
        let mut world = at_rest(region);
        work(&mut world, 3, 10);
        let kept = world.nodes[3].disk.clone();
        world.lose_disk(3);
        world.lose_disk(4);
        for server in [0, 1] {
            world.stop(server, true);
            world.start(server).unwrap();
        }
        world.start(3).unwrap();
        world.start(4).unwrap();
        world.run(8_000_000).unwrap();
        assert_eq!(world.leader(), None);
        for server in [0, 1] {
            assert!(
                obstacle(&world, server).contains("nodes 3, 4 were emptied"),
                "{}",
                obstacle(&world, server)
            );
            assert_eq!(world.gauge(server, "ordain_storage_forgetful{replica=\"0\"}"), 0.0);
        }
        world.stop(3, true);
        world.nodes[3].disk = kept;
        world.start(3).unwrap();
        settle(&mut world);
        assert_eq!((obstacle(&world, 0), world.agreed.len()), ("", 3));
    }
}

/// The same while a server leads: it makes nothing durable any more.
#[test]
fn a_leader_does_not_count_two_lost_disks() {
    let mut world = at_rest(Region::new(1, 3));
    work(&mut world, 3, 10);
    for replica in [2, 3] {
        world.lose_disk(replica);
        world.start(replica).unwrap();
    }
    world.run(100_000).unwrap();
    let id = world.append(0, 1, 10).unwrap();
    let asked = world.tally.refused;
    world.ask(0).unwrap();
    world.run(5_000_000).unwrap();
    assert_eq!((fate(&world, id), world.tally.refused), (None, asked + 1));
    assert!(
        obstacle(&world, 0).contains("nodes 2, 3 were emptied"),
        "{} {}",
        obstacle(&world, 0),
        world.describe()
    );
}

/// All disks are lost and a server has a checkpoint: it does not begin anew with what is left.
#[test]
fn a_server_with_a_checkpoint_begins_no_region_anew() {
    let mut world = at_rest(Region::new(1, 3));
    work(&mut world, 3, 10);
    world.checkpoint(0);
    for node in world.replicas() {
        world.lose_disk(node);
        world.start(node).unwrap();
    }
    world.stop(0, true);
    world.start(0).unwrap();
    let found = world.run(5_000_000).unwrap_err();
    assert!(found.contains("s0 halts: this server has a checkpoint of everything up to place 3"), "{found}");
}

/// A replica that has been left out of what is required is emptied; and one that is required is, while the change that leaves out another
/// is not durable.
#[test]
fn a_disk_is_lost_while_the_configuration_changes() {
    let mut world = at_rest(Region { mode: StorageMode::Full, ..Region::new(1, 3) });
    work(&mut world, 2, 10);
    world.set_cut(3);
    world.run(900_000).unwrap();
    assert_eq!(world.gauge(0, "ordain_storage_configuration"), 2.0);
    world.lose_disk(3);
    world.heal_links();
    world.start(3).unwrap();
    settle(&mut world);
    world.run(1_000_000).unwrap();
    assert_eq!((world.gauge(0, "ordain_storage_configuration"), counted(&world)), (3.0, 3));
    // The line that leaves out the third is on its way.
    world.set_cut(3);
    let is_changing = |world: &World| world.gauge(0, "ordain_storage_reconfigured_total") == 5.0;
    world.run_until(1_000_000, is_changing).unwrap();
    world.lose_disk(2);
    world.start(2).unwrap();
    let id = world.append(0, 1, 10).unwrap();
    world.run(3_000_000).unwrap();
    assert_eq!(fate(&world, id), None, "one copy");
    world.heal_links();
    settle(&mut world);
    world.run(2_000_000).unwrap();
    assert_eq!((fate(&world, id), counted(&world)), (Some(Fate::Logged), 3));
    assert_eq!(world.gauge(0, "ordain_storage_configuration"), 3.0);
}

/// All lose power right after a lost replica counts again, and another one loses its disk: the others know by their disks that it counts.
#[test]
fn that_a_replica_counts_again_outlasts_a_loss_of_power() {
    let mut world = at_rest(Region::new(1, 3));
    work(&mut world, 2, 10);
    world.lose_disk(3);
    world.start(3).unwrap();
    settle(&mut world);
    world.lose_disk(2);
    for node in [0, 1, 3] {
        world.stop(node, true);
    }
    (0..4).for_each(|node| world.start(node).unwrap());
    world.run_until(10_000_000, |world| world.is_settled() && counted(world) == 3).unwrap();
}

/// A server leads that has not heard of the change by which the lost replica counts again, which is on one replica.
#[test]
fn a_change_that_one_replica_has_counts_with_both_majorities() {
    let mut world = at_rest(Region::new(2, 3));
    work(&mut world, 2, 10);
    let leader = world.leader().unwrap();
    world.lose_disk(4);
    world.start(4).unwrap();
    // The line that admits it comes to the first and to itself.
    world.set_cut(3);
    world
        .run_until(1_000_000, |world| world.gauge(leader, "ordain_storage_reconfigured_total") == 1.0)
        .unwrap();
    world.run(20_000).unwrap();
    assert_eq!(world.gauge(2, "ordain_storage_last_line"), world.gauge(4, "ordain_storage_last_line"));
    world.stop(leader, true);
    world.run(4_000_000).unwrap();
    assert_eq!(world.leader(), None, "two of those that count by it, and one of those that counted before");
    world.heal_links();
    world.start(leader).unwrap();
    settle(&mut world);
    assert_eq!(counted(&world), 3);
}
