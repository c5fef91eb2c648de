//! Random faults, many seeds: every log seals a beginning of what the primaries seal, whatever happens, and once the faults
//! end all have all of it. The world looks at every batch that is sealed.

use ordain_role::{PeerState, TimerId};

use super::world::{Fault, World};

/// What the runs came to.
#[derive(Debug, Default)]
struct Tally {
    entries: usize,
    successions: usize,
    read_again: f64,
    lost: usize,
    rejected: usize,
    trimmed: usize,
    copied: usize,
}

fn run(seed: u64, tally: &mut Tally) -> Fault {
    let mut world = World::new(3, seed)?;
    (world.kept_bytes, world.piece) = (800 + 400 * (seed as usize % 5), 200 + 100 * (seed as usize % 4));
    for _ in 0..400 {
        for _ in 0..world.random.below(12) {
            world.step()?;
        }
        let primary = world.primary();
        let node = world.random.below(3) as usize;
        match world.random.below(40) {
            0..24 => {
                let is_idle = world.nodes[primary].open.is_empty() && world.nodes[primary].leads;
                if world.nodes[primary].log.is_some() && (is_idle || world.random.below(50) == 0) {
                    let size = world.random.below(2) * world.random.below(400);
                    if world.nodes[primary].open.is_empty() {
                        world.append(primary, size)?;
                    }
                }
            }
            24 => world.crash(node),
            25..29 => {
                let dead: Vec<usize> = (0..3).filter(|node| world.nodes[*node].log.is_none()).collect();
                if let Some(node) = world.random.pick(&dead) {
                    world.start(node)?;
                }
            }
            29 => {
                let other = (node + 1) % 3;
                if world.nodes[node].log.is_some() && world.nodes[other].log.is_some() {
                    world.break_link(node, other)?;
                }
            }
            30 => {
                let state = [PeerState::Lost, PeerState::Back][world.random.below(2) as usize];
                world.peer(node, (node + 1) % 3, state)?;
            }
            31 => {
                let full = (world.random.below(3) == 0).then_some(0);
                world.nodes[node].disk.set_full_from(full);
            }
            32..36 => {
                let timer = TimerId(1 + world.random.below(3) as u32);
                world.fire(node, timer)?;
            }
            36 => {
                let in_touch = world.random.below(2) == 0;
                world.tell_leadership_records(node, in_touch)?;
            }
            37 => world.tell_leadership_records(primary, true)?,
            39 => match world.random.below(3) {
                0 => world.checkpoint(node),
                1 => {
                    (0..3).for_each(|node| world.checkpoint(node));
                    world.trim()?;
                }
                _ => tally.copied += usize::from(world.copy_checkpoint(node)?),
            },
            38 if world.random.below(3) == 0 => {
                tally.successions += usize::from(succeed(&mut world, node)?);
            }
            _ => {}
        }
    }
    for node in 0..3 {
        world.nodes[node].disk.set_full_from(None);
        if world.nodes[node].log.is_none() {
            world.start(node)?;
        }
        for other in (0..node).filter(|other| *other != node) {
            world.peer(node, other, PeerState::Back)?;
        }
        world.tell_leadership_records(node, true)?;
    }
    for _ in 0..4 {
        world.settle()?;
        world.wait()?;
        for node in 0..3 {
            tally.copied += usize::from(world.copy_checkpoint(node)?);
        }
    }
    tally.trimmed += usize::from(world.trimmed > 0);
    let primary = world.primary();
    if !world.nodes[primary].leads {
        return Err("the primary does not lead".to_owned());
    }
    world.append(primary, 100)?;
    world.settle()?;
    world.converged()?;
    for node in 0..3 {
        tally.read_again += world.gauge(node, "ordain_ship_read_again_total");
        tally.lost += world.nodes[node].lost;
        tally.rejected += world.nodes[node].rejected;
    }
    tally.entries += world.truth.len();
    Ok(())
}

/// Another becomes primary, while messages arrive or do not.
fn succeed(world: &mut World, candidate: usize) -> Result<bool, String> {
    // Only who has all that is not in every log is ever in sync.
    let has = world.nodes[candidate].sealed.last().copied().unwrap_or(0);
    let is_in_sync = has.max(world.nodes[candidate].checkpoint) >= world.trimmed;
    if world.nodes[candidate].log.is_none() || candidate == world.primary() || !is_in_sync {
        return Ok(false);
    }
    // Whoever gathers must be able to hear from all that live: their disks have space.
    (0..3).for_each(|node| world.nodes[node].disk.set_full_from(None));
    world.fence(candidate)?;
    for _ in 0..world.random.below(10) {
        world.step()?;
    }
    for node in world.live() {
        world.fire(node, TimerId(1))?;
    }
    world.gather(candidate)?;
    for _ in 0..world.random.below(10) {
        world.step()?;
    }
    world.leadership_record(candidate)?;
    Ok(true)
}

#[test]
fn every_log_seals_a_beginning_of_what_the_primaries_seal_and_all_come_to_have_it() {
    let mut tally = Tally::default();
    for seed in 0..400 {
        run(seed, &mut tally).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
    let is_worth_it = tally.entries > 10_000
        && tally.successions > 100
        && tally.read_again > 1000.0
        && tally.lost > 10
        && tally.rejected > 100
        && tally.trimmed > 100
        && tally.copied > 30;
    assert!(is_worth_it, "{tally:?}");
}
