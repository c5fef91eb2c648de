//! Scenario 12 of the sheet (regions.md, section 8): what a failover loses, no view of another region may have had.

use std::collections::BTreeSet;

use ordain_model::{Epoch, Micros};
use ordain_role::{Address, Bug, Bugs, Event, NodeId, Now, Outbox};

use super::scenarios::renew_links;
use super::world::{Region, World, epoch_of};
use crate::storage::message::{After, Content, Storage};
use crate::tests::Message;

/// The log of another region's reader.
const READER: Address = Address { node: NodeId(99), role: 1 };

/// The entries that a storage node tells another region of.
fn told_by(world: &mut World, replica: usize) -> BTreeSet<u64> {
    let watch = Storage::Watch { number: 1, after: After::Epoch(Epoch(0)) };
    let mut out = Outbox::default();
    let event = Event::Message { from: READER, message: watch.into() };
    // What it asks of its disk for this is nothing: the lines are in memory.
    let now = Now { elapsed: Micros(world.time), wall: Micros(world.time) };
    let part = world.nodes[replica].part.as_mut().expect("the storage node is up");
    part.role().handle(now, event, &mut out);
    let answers = out.sends.into_iter().filter(|(to, _)| *to == READER);
    let lines = answers.flat_map(|(_, message)| match message {
        Message::Storage(Storage::Fetched { lines, .. }) => lines,
        other => panic!("{other:?}"),
    });
    let entries = lines.filter_map(|line| match line.content {
        Content::Entry(bytes) => Some(epoch_of(&bytes)),
        Content::Begin | Content::Configuration(_) => None,
    });
    entries.collect()
}

/// The leader and one of three storage nodes die with an entry that no other has, and another server leads. Answers what a view has been told of
/// before, and the entries that storage nodes tell of in the end, if there is one.
fn failover(bugs: Bugs) -> (BTreeSet<u64>, Result<BTreeSet<u64>, String>) {
    let mut world = World::new(Region::new(2, 3), 1, bugs);
    (world.delay, world.disk_delay) = ((1000, 1000), (2000, 2000));
    world.run_until(20_000_000, World::is_settled).unwrap();
    world.run(500_000).unwrap();
    assert!(world.nodes[0].leads);
    world.append(0, 1, 10).unwrap();
    world.run(300_000).unwrap();
    world.cut_link(0, 3);
    world.cut_link(0, 4);
    world.append(0, 1, 10).unwrap();
    world.run(300_000).unwrap();
    (told_by(&mut world, 2), next_lead(&mut world))
}

/// The servers and storage nodes that are left go on, with another entry than the lost one.
fn next_lead(world: &mut World) -> Result<BTreeSet<u64>, String> {
    world.stop(0, true);
    world.stop(2, true);
    renew_links(world);
    world.run_until(3_000_000, |world| world.nodes[1].leads)?;
    world.append(1, 5, 10)?;
    world.run(300_000)?;
    let [last, other] = [3, 4].map(|replica| told_by(world, replica));
    assert_eq!(last, other);
    Ok(last)
}

#[test]
fn no_view_is_told_of_what_a_failover_loses() {
    let (told, last) = failover(Bugs::NONE);
    let last = last.unwrap();
    assert_eq!((told.len(), last.len()), (1, 2), "the first entry, and the one of the next leader");
    assert!(told.is_subset(&last), "{told:?} {last:?}");
    // Planted: a view is told of an entry that one storage node has. The next leader finds out that something is lost.
    let (told, last) = failover(Bugs::NONE.with(Bug::DurableByOne));
    assert!(told.len() == 2 && last.is_err(), "{told:?} {last:?}");
}
