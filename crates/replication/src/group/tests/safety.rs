//! Random faults, many seeds: what the group promises holds whatever happens, and it goes on once the faults end.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ordain_log::MemoryDirectory;
use ordain_role::{Bug, Bugs};

use crate::tests::Note;

use super::world::{Answers, Fate, Fault, World};

/// What a run came to.
#[derive(Debug, Default)]
struct Tally {
    logged: usize,
    /// Of those that were taken, not of those that were sent back at once.
    lost: usize,
    fetches: f64,
    replaced: usize,
    answers: Answers,
    /// Logs that begin later at the end, and checkpoints that were copied.
    trimmed: usize,
    copied: usize,
}

/// Faults for a while, then none, then everything must be in order.
fn run(members: usize, seed: u64, bugs: Bugs) -> Result<Tally, String> {
    let mut world = World::new(members, seed, bugs);
    // One of them may lose its disk; with more gone at a time, what they acknowledged may be nowhere else.
    let mut replaced = None;
    let mut copied = 0;
    while world.time < 8_000_000 {
        // Between two faults there is work.
        for _ in 0..world.random.between((1, 20)) {
            let pause = world.random.between((100, 20_000));
            world.run(pause)?;
            let any = world.random.below(members as u64) as usize;
            if world.random.below(3) == 0 {
                ask(&mut world, any)?;
            }
            // Mostly at a leader, now and then at somebody who does not lead, or at one of two who think they do.
            let node = match world.leader() {
                Some(_) if world.random.below(20) == 0 => any,
                Some(first) if any < members / 2 => first,
                Some(_) => (0..members).rev().find(|node| world.nodes[*node].leads).unwrap_or(any),
                None if world.random.below(10) == 0 => any,
                None => continue,
            };
            if world.nodes[node].log.is_some() && world.nodes[node].open.len() < 4 {
                let size = world.random.below(3) * world.random.below(400);
                // Now and then an epoch that is not above the last.
                let skip = world.random.below(8);
                world.propose(node, skip, size)?;
            }
        }
        fault(&mut world, members)?;
        // Before the group has begun there is nothing to replace.
        if replaced.is_none() && world.random.below(60) == 0 && !world.agreed.is_empty() {
            let node = world.random.below(members as u64) as usize;
            replace(&mut world, node);
            replaced = Some(node);
        }
        copied += trim(&mut world, members)?;
        if world.random.below(3) == 0 {
            heal(&mut world);
        }
    }
    heal(&mut world);
    for node in 0..members {
        if world.nodes[node].log.is_none() {
            world.start_later(node, 1000);
        }
    }
    world.run(1_000_000)?;
    if replaced.is_some() {
        let is_in = |world: &World| {
            (0..members)
                .all(|node| world.gauge(node, "ordain_group_learners") == 0.0 && world.nodes[node].votes())
        };
        copied +=
            until(&mut world, 20_000_000, is_in).map_err(|e| format!("the newcomer is not let in: {e}"))?;
    }
    let settled = until(&mut world, 6_000_000, World::is_settled);
    copied += settled.map_err(|e| format!("the group does not settle: {e}"))?;
    if world.open_questions() > 0 {
        return Err("whether a node leads is not answered although nothing is wrong".to_owned());
    }
    let before = world.agreed.len();
    for _ in 0..10 {
        let leader = world.leader().ok_or("the leader is gone although nothing happens")?;
        let confirmed = world.answers.confirmed;
        world.ask(leader)?;
        world.run(50_000)?;
        if world.answers.confirmed != confirmed + 1 {
            return Err("the leader is not confirmed although nothing is wrong".to_owned());
        }
        world.propose(leader, 1, 100)?;
        world.run(50_000)?;
    }
    // One that lacks no batch may still lack the entry with which a leader has begun.
    copied += until(&mut world, 3_000_000, World::is_settled)?;
    if world.agreed.len() != before + 10 {
        return Err("the group does not take batches although nothing is wrong".to_owned());
    }
    let logged = world.fates.values().filter(|fate| **fate == Fate::Logged).count();
    let seen = |id: &u64| world.agreed.iter().any(|bytes| Note::id_of(bytes) == *id);
    for (id, fate) in &world.fates {
        if seen(id) != (*fate == Fate::Logged) {
            return Err(format!("batch {id} is {fate:?}"));
        }
    }
    let fetches = (0..members).map(|node| world.gauge(node, "ordain_group_fetches_total")).sum();
    let trimmed = (0..members).filter(|node| world.gauge(*node, "ordain_group_first") > 1.0).count();
    let replaced = usize::from(replaced.is_some());
    let answers = world.answers;
    Ok(Tally { logged, lost: world.lost_late, fetches, replaced, answers, trimmed, copied })
}

/// A node is asked some times whether it leads; mostly one that says so, of which there may be two.
fn ask(world: &mut World, any: usize) -> Fault {
    let leads = (0..world.nodes.len()).filter(|node| world.nodes[*node].leads);
    let asked = if world.random.below(6) == 0 { vec![any] } else { leads.collect() };
    for node in asked.into_iter().filter(|node| world.nodes[*node].log.is_some()).collect::<Vec<_>>() {
        for _ in 0..world.random.between((1, 4)) {
            world.ask(node)?;
        }
    }
    Ok(())
}

/// Now and then a member takes a checkpoint, or lets go what its checkpoint has, or gets another one's. Says how many have.
fn trim(world: &mut World, members: usize) -> Result<usize, String> {
    let node = world.random.below(members as u64) as usize;
    match world.random.below(8) {
        0..3 => world.checkpoint(node),
        3 => {
            let epoch = world.nodes[node].checkpoint;
            world.trim(node, epoch)?;
        }
        4 => {
            // As all do when all have one.
            (0..members).for_each(|node| world.checkpoint(node));
            let least = world.nodes.iter().map(|node| node.checkpoint).min().unwrap_or(0);
            (0..members).try_for_each(|node| world.trim(node, least))?;
        }
        5 => return Ok(usize::from(world.copy_checkpoint(node)?)),
        _ => {}
    }
    Ok(0)
}

/// Goes on until something holds, while members that are behind get checkpoints. Says how many have.
fn until(world: &mut World, most: u64, holds: impl Fn(&World) -> bool) -> Result<usize, String> {
    let (end, mut copied) = (world.time + most, 0);
    loop {
        match world.run_until(100_000, &holds) {
            Ok(_) => return Ok(copied),
            Err(error) if world.time >= end => return Err(error),
            Err(_) => {}
        }
        for node in 0..world.nodes.len() {
            copied += usize::from(world.copy_checkpoint(node)?);
        }
    }
}

/// A member loses its disk, and its node comes back as another member.
fn replace(world: &mut World, node: usize) {
    world.stop(node, true);
    world.nodes[node].disk = MemoryDirectory::new();
    world.nodes[node].generation += 1;
    world.nodes[node].forget_checkpoint();
    world.start_later(node, 1000);
}

fn heal(world: &mut World) {
    world.loss = 0;
    world.cut.clear();
    (world.delay, world.disk_delay) = ((200, 2000), (100, 3000));
    world.nodes.iter_mut().for_each(|node| node.disk.set_full_from(None));
    world.nodes.iter_mut().for_each(|node| node.pace = 100);
}

fn fault(world: &mut World, members: usize) -> Fault {
    let node = world.random.below(members as u64) as usize;
    let back = world.random.between((1000, 800_000));
    match world.random.below(14) {
        0..=2 => {
            let power = world.random.below(2) == 0;
            world.stop(node, power);
            world.start_later(node, back);
        }
        3 => {
            if let Some(leader) = world.leader() {
                world.stop(leader, true);
                world.start_later(leader, back);
            }
        }
        4 => {
            for node in 0..members {
                world.stop(node, true);
                let back = world.random.between((1000, 300_000));
                world.start_later(node, back);
            }
        }
        5 => world.set_cut(node, true),
        6 => {
            let other = world.random.below(members as u64) as usize;
            world.cut.insert((node, other));
        }
        7 => world.cut.clear(),
        8 => {
            if let Some(leader) = world.leader() {
                world.set_cut(leader, true);
                // It does not know yet, and takes some more.
                world.propose(leader, 1, 10)?;
                world.propose(leader, 1, 10)?;
            }
        }
        9 => world.loss = world.random.below(3) * 100,
        10 => {
            // The clocks of some nodes are slow or fast, or jump.
            world.nodes[node].pace = world.random.between((40, 200));
            world.nodes[node].ahead = world.random.below(10_000_000);
        }
        11 => {
            if let Some(leader) = world.leader() {
                // It takes itself for the leader for some time after another one is.
                world.nodes[leader].pace = 40;
                world.set_cut(leader, true);
                let pause = world.random.between((100_000, 600_000));
                world.run(pause)?;
            }
        }
        12 => world.disk_delay = if world.random.below(2) == 0 { (100, 3000) } else { (100, 150_000) },
        _ => {
            let full = world.random.below(2) == 0;
            world.nodes[node].disk.set_full_from(full.then_some(0));
            world.delay = if full { (200, 2000) } else { (200, 60_000) };
        }
    }
    Ok(())
}

#[test]
fn three_members_keep_their_promises() {
    let mut total = Tally::default();
    for seed in 0..240 {
        let tally = run(3, seed, Bugs::NONE).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        total.logged += tally.logged;
        total.lost += tally.lost;
        total.fetches += tally.fetches;
        total.replaced += tally.replaced;
        total.trimmed += tally.trimmed;
        total.answers.confirmed += tally.answers.confirmed;
        total.answers.refused += tally.answers.refused;
        total.copied += tally.copied;
    }
    // The runs are worth something: much is agreed on, something is lost, and members that lag are served from disk.
    assert!(
        total.logged > 10_000 && total.lost > 30 && total.fetches > 100.0 && total.replaced > 20,
        "{total:?}"
    );
    assert!(total.trimmed > 100 && total.copied > 20, "{total:?}");
    assert!(total.answers.confirmed > 10_000 && total.answers.refused > 1_000, "{total:?}");
}

#[test]
fn five_members_keep_their_promises() {
    for seed in 1000..1060 {
        run(5, seed, Bugs::NONE).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// In how many runs of `seeds` something is found to be broken, be it by the world or by a role that panics.
fn found(seeds: std::ops::Range<u64>, bugs: Bugs) -> usize {
    let is_broken = |seed: &u64| !matches!(catch_unwind(AssertUnwindSafe(|| run(3, *seed, bugs))), Ok(Ok(_)));
    seeds.filter(is_broken).count()
}

#[test]
fn a_journal_that_does_not_sync_is_found_out() {
    assert!(found(0..10, Bugs::NONE.with(Bug::SkipSync)) > 0);
}

#[test]
fn a_leader_that_confirms_itself_is_found_out() {
    assert!(found(0..20, Bugs::NONE.with(Bug::ConfirmFromBelief)) > 0);
}
