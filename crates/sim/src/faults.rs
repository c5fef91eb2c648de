//! The faults of a run, and how hard they are.
//!
//! [`Faults`] is what a user asks for; [`Intensity`] is what one seed makes of it. Every seed draws its own
//! rates and some seeds leave a fault out altogether, because a run in which everything fails all the time
//! never reaches the states that a run with one well-placed fault does. (A fault that is asked for alone is
//! always used.) Times between faults are of the order of what a few hundred transactions take, so that short
//! runs meet them too.

use std::fmt;
use std::str::FromStr;

use ordain_model::Random;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// Nodes lose power at any disk write or any moment and come back later.
    Crash,
    /// The network between nodes is cut for a while: in two, one node or one zone off, one way alone, or between some pairs of
    /// nodes. It loses packets now
    /// and then, connections break, and in some runs streams have room for little.
    Partition,
    /// Packets are late and roles are held up, sometimes by a lot; whole nodes stand still for a while and go on.
    Delay,
    /// Packets between nodes overtake each other.
    Reorder,
    /// Packets between nodes arrive twice; clients lose patience and send a request of a session again.
    Duplicate,
    /// Disks are slow, full for a while, and fail to sync now and then: a node may stop then, and comes back.
    Disk,
    /// Clocks run fast or slow, and wall clocks jump both ways.
    Clock,
    /// A node loses power and its disk, and comes back with an empty one: where the system can bear that, and not before
    /// it has got over the last time.
    Loss,
    /// The leader of a group is cut off from the other members alone, while clients and all other nodes reach it, until another
    /// one leads and for a while longer.
    Depose,
    /// The same, and then the new leader is cut off from the members until the former one leads again, without having
    /// started anew.
    Regain,
    /// A leader stands still when it has handled a message of some kind, and before anything that it sends for it leaves,
    /// until another one leads and for a while longer.
    Hold,
}

impl Fault {
    /// Those that a seed draws for any system.
    const OF_NODES: [Fault; 7] = [
        Fault::Crash,
        Fault::Partition,
        Fault::Delay,
        Fault::Reorder,
        Fault::Duplicate,
        Fault::Disk,
        Fault::Clock,
    ];
    /// Those by which the leader of a group loses its power while it lives.
    pub(crate) const OF_LEADERS: [Fault; 3] = [Fault::Depose, Fault::Regain, Fault::Hold];

    /// All of them, with their names on the command line.
    pub const ALL: [(Fault, &'static str); 11] = [
        (Fault::Crash, "crash"),
        (Fault::Partition, "partition"),
        (Fault::Delay, "delay"),
        (Fault::Reorder, "reorder"),
        (Fault::Duplicate, "duplicate"),
        (Fault::Disk, "disk"),
        (Fault::Clock, "clock"),
        (Fault::Loss, "loss"),
        (Fault::Depose, "depose"),
        (Fault::Regain, "regain"),
        (Fault::Hold, "hold"),
    ];
}

/// A set of kinds of fault. Its text form is `none`, `all`, or names separated by commas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults(u16);

impl Faults {
    /// No faults.
    pub const NONE: Faults = Faults(0);
    /// Every kind.
    pub const ALL: Faults = Faults((1 << Fault::ALL.len()) - 1);

    /// The set with one more.
    #[must_use]
    pub const fn with(self, fault: Fault) -> Faults {
        Faults(self.0 | 1 << fault as u16)
    }

    /// The set without one.
    #[must_use]
    pub const fn without(self, fault: Fault) -> Faults {
        Faults(self.0 & !(1 << fault as u16))
    }

    /// True if all that is in the set are faults of leaders.
    pub(crate) fn are_of_leaders(self) -> bool {
        self != Faults::NONE && Fault::OF_LEADERS.into_iter().fold(self, Faults::without) == Faults::NONE
    }

    /// True if a kind is in the set.
    pub const fn has(self, fault: Fault) -> bool {
        self.0 & (1 << fault as u16) != 0
    }
}

/// A name that is no fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown fault `{0}`: say none, all, or some of crash,partition,delay,reorder,duplicate,disk,clock,loss,depose,regain,hold separated by commas"
)]
pub struct UnknownFault(String);

impl FromStr for Faults {
    type Err = UnknownFault;

    fn from_str(text: &str) -> Result<Faults, UnknownFault> {
        match text {
            "none" => return Ok(Faults::NONE),
            "all" => return Ok(Faults::ALL),
            _ => {}
        }
        text.split(',').try_fold(Faults::NONE, |set, name| {
            let name = name.trim();
            let found = Fault::ALL.iter().find(|(_, n)| *n == name);
            found.map(|(fault, _)| set.with(*fault)).ok_or_else(|| UnknownFault(name.to_owned()))
        })
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Faults::NONE => return f.write_str("none"),
            Faults::ALL => return f.write_str("all"),
            _ => {}
        }
        let names: Vec<&str> =
            Fault::ALL.iter().filter(|(fault, _)| self.has(*fault)).map(|(_, name)| *name).collect();
        f.write_str(&names.join(","))
    }
}

/// The faults of one seed. Chances are per million; times are virtual microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Intensity {
    /// Longest delay of a message between roles of one node.
    pub local_delay_us_max: u64,
    /// Least delay of a packet between nodes.
    pub link_delay_us_min: u64,
    /// Longest delay of a packet between nodes, beyond the least.
    pub link_delay_us_max: u64,
    /// The time after which a link sends again what is not acknowledged.
    pub retransmit_us: u64,
    /// Longest time until a broken connection is made again.
    pub redial_us_max: u64,
    /// The time after which a node that is not reached is called lost.
    pub lost_after_us: u64,
    /// The most bytes that a link keeps until they are acknowledged.
    pub link_bytes_max: u64,
    /// Chance that a message or a role is held up.
    pub stall_chance: u32,
    /// Longest time of that.
    pub stall_us_max: u64,
    /// Mean time between two stands of a node; 0 for none.
    pub freeze_every_us: u64,
    /// Longest time that a node stands still.
    pub freeze_us_max: u64,
    /// Chance that a packet between nodes may overtake others.
    pub reorder_chance: u32,
    /// Chance that a packet between nodes is delivered twice.
    pub duplicate_chance: u32,
    /// Chance that a packet between nodes is lost.
    pub drop_chance: u32,
    /// Mean time between two breaks of a connection; 0 for none.
    pub break_every_us: u64,
    /// Chance that a client of a session does not wait for its answer.
    pub impatience_chance: u32,
    /// The longest time that a client of a cluster waits before it tries another node; 0 for no bound.
    pub patience_us_max: u64,
    /// Mean time between two crashes; 0 for none.
    pub crash_every_us: u64,
    /// Longest time that a node stays down.
    pub down_us_max: u64,
    /// Chance that a restarting node crashes again while it recovers.
    pub crash_in_recovery_chance: u32,
    /// Mean time between two partitions; 0 for none.
    pub partition_every_us: u64,
    /// Longest time that a partition lasts.
    pub partition_us_max: u64,
    /// Longest ordinary disk operation that does not sync.
    pub write_us_max: u64,
    /// Longest ordinary sync.
    pub sync_us_max: u64,
    /// Chance that a disk operation takes a hundred times as long.
    pub slow_disk_chance: u32,
    /// Chance that a sync fails and loses what it should have kept.
    pub sync_failure_chance: u32,
    /// Mean time between two shortages of space; 0 for none.
    pub full_every_us: u64,
    /// Longest time of what happens to single messages, disk operations or clients for a while.
    pub spell_us_max: u64,
    /// Longest time that a disk stays full.
    pub full_us_max: u64,
    /// Mean time between two losses of a disk; 0 for none.
    pub loss_every_us: u64,
    /// Mean time between two leaders that lose their power while they live, for each way in which they may; 0 for none.
    pub depose_every_us: [u64; 3],
    /// Longest time that a deposed leader stays as it is after another one leads.
    pub depose_us_max: u64,
    /// The most that a clock's rate is off the true one, per million.
    pub clock_drift: u32,
    /// Mean time between two jumps of a wall clock; 0 for none.
    pub jump_every_us: u64,
    /// Farthest jump.
    pub jump_us_max: u64,
}

impl Intensity {
    /// A healthy cluster: some delay, so that roles interleave, and nothing else.
    pub fn calm(random: &mut Random) -> Intensity {
        Intensity {
            local_delay_us_max: 1 << random.between(0, 6),
            link_delay_us_max: 1 << random.between(5, 10),
            retransmit_us: 1 << random.between(11, 13),
            redial_us_max: 1 << random.between(8, 14),
            lost_after_us: 1 << random.between(15, 19),
            link_bytes_max: u64::MAX,
            write_us_max: 1 << random.between(2, 6),
            sync_us_max: 1 << random.between(7, 12),
            ..Intensity::default()
        }
    }

    /// True if nothing of a node or of the network fails.
    pub(crate) const fn is_calm(&self) -> bool {
        self.crash_every_us == 0
            && self.stall_chance == 0
            && self.freeze_every_us == 0
            && self.partition_every_us == 0
            && self.reorder_chance == 0
            && self.duplicate_chance == 0
    }

    /// Draws how hard a seed uses the faults that it may use on so many nodes. What happens to one node of several
    /// lasts longer, so that the others have the time to notice and to do without it.
    pub fn draw(faults: Faults, nodes: u16, random: &mut Random) -> Intensity {
        let longer = if nodes > 1 { 4 } else { 0 };
        let mut drawn = Intensity::calm(random);
        // Every kind is asked for in any case, so that leaving one out changes the others of a seed little.
        let only = faults.0.count_ones() == 1;
        let uses = |fault| (random.chance(750_000) || only) && faults.has(fault);
        let used = Fault::OF_NODES.map(uses);
        let rate = |random: &mut Random| 1 << random.between(10, 17);
        // A packet that is lost or late holds up all that come after it.
        let packets = |random: &mut Random| 1 << random.between(8, 15);
        let [crash, partition, delay, reorder, duplicate, disk, clock] = used;
        if crash {
            drawn.crash_every_us = 1 << random.between(9, 15);
            drawn.down_us_max = 1 << random.between(8, 17 + longer);
            drawn.crash_in_recovery_chance = random.below(400_000) as u32;
        }
        if partition {
            drawn.partition_every_us = 1 << random.between(11, 17);
            drawn.partition_us_max = 1 << random.between(10, 17 + longer);
            drawn.drop_chance = packets(random);
            drawn.break_every_us = 1 << random.between(11, 18);
            if random.chance(250_000) {
                drawn.link_bytes_max = 1 << random.between(16, 20);
            }
        }
        if delay {
            drawn.stall_chance = rate(random);
            drawn.stall_us_max = 1 << random.between(8, 16);
            drawn.freeze_every_us = 1 << random.between(13, 18);
            drawn.freeze_us_max = 1 << random.between(8, 16 + longer);
        }
        if reorder {
            drawn.reorder_chance = packets(random);
        }
        if duplicate {
            drawn.duplicate_chance = packets(random);
            drawn.impatience_chance = 1 << random.between(14, 18);
        }
        if disk {
            drawn.slow_disk_chance = rate(random);
            drawn.sync_failure_chance = 1 << random.between(10, 16);
            drawn.full_every_us = 1 << random.between(11, 17);
            drawn.full_us_max = 1 << random.between(9, 16);
        }
        if clock {
            drawn.clock_drift = random.below(200_000) as u32;
            drawn.jump_every_us = 1 << random.between(10, 17);
            drawn.jump_us_max = 1 << random.between(10, 34);
        }
        if nodes > 1 && faults != Faults::NONE {
            drawn.patience_us_max = 1 << random.between(17, 21);
        }
        drawn
    }

    /// Draws how hard the incidents of a seed are (module `incidents`). The chances are those of spells while they last.
    pub fn draw_incidents(faults: Faults, nodes: u16, random: &mut Random) -> Intensity {
        let longer = if nodes > 1 { 4 } else { 0 };
        let mut drawn = Intensity::calm(random);
        let mut chance = || 1 << random.between(13, 17);
        (drawn.drop_chance, drawn.stall_chance) = (chance(), chance());
        (drawn.reorder_chance, drawn.duplicate_chance) = (chance(), chance());
        (drawn.impatience_chance, drawn.slow_disk_chance) = (chance(), chance());
        // A batch gathers while the one before is synced, so disks that are too fast keep batches small.
        drawn.sync_us_max = 1 << random.between(10, 13);
        drawn.spell_us_max = 1 << random.between(10, 16);
        drawn.down_us_max = 1 << random.between(8, 17 + longer);
        drawn.partition_us_max = 1 << random.between(10, 17 + longer);
        drawn.stall_us_max = 1 << random.between(8, 16);
        drawn.freeze_us_max = 1 << random.between(8, 16 + longer);
        drawn.full_us_max = 1 << random.between(9, 16);
        drawn.jump_us_max = 1 << random.between(10, 34);
        if faults.has(Fault::Crash) {
            drawn.crash_in_recovery_chance = random.below(200_000) as u32;
        }
        if faults.has(Fault::Partition) && random.chance(200_000) {
            drawn.link_bytes_max = 1 << random.between(16, 20);
        }
        if faults.has(Fault::Clock) {
            drawn.clock_drift = random.below(200_000) as u32;
        }
        if nodes > 1 && faults != Faults::NONE {
            drawn.patience_us_max = 1 << random.between(17, 21);
        }
        drawn
    }

    /// The same without spells: those begin later.
    #[must_use]
    pub fn without_spells(&self) -> Intensity {
        Intensity {
            drop_chance: 0,
            stall_chance: 0,
            reorder_chance: 0,
            duplicate_chance: 0,
            impatience_chance: 0,
            slow_disk_chance: 0,
            ..self.clone()
        }
    }

    /// Draws how often leaders lose their power while they live, on a system that has leaders. Such a fault lasts for an
    /// election, far longer than others, so many seeds do without.
    pub(crate) fn draw_deposals(&mut self, faults: Faults, random: &mut Random) {
        if Fault::OF_LEADERS.into_iter().all(|fault| !faults.has(fault)) {
            return;
        }
        self.depose_us_max = 1 << random.between(10, 19);
        for (fault, every) in Fault::OF_LEADERS.into_iter().zip(&mut self.depose_every_us) {
            if faults.has(fault) && (random.chance(250_000) || faults.are_of_leaders()) {
                *every = 1 << random.between(14, 18);
            }
        }
    }

    /// Draws how often a disk is lost, on a system that can bear it.
    pub fn draw_loss(&mut self, faults: Faults, random: &mut Random) {
        if faults.has(Fault::Loss) && (random.chance(500_000) || faults.0.count_ones() == 1) {
            self.loss_every_us = 1 << random.between(15, 20);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        for text in ["none", "all", "crash", "loss", "crash,delay,disk"] {
            assert_eq!(text.parse::<Faults>().unwrap().to_string(), text);
        }
        assert_eq!("disk, clock".parse::<Faults>().unwrap().to_string(), "disk,clock");
        assert!("".parse::<Faults>().is_err());
        assert!("crash,fire".parse::<Faults>().unwrap_err().to_string().contains("`fire`"));
        let all_but = Faults::ALL.without(Fault::Disk);
        assert!(all_but.has(Fault::Clock) && !all_but.has(Fault::Disk));
    }

    #[test]
    fn a_fault_that_was_not_asked_for_never_happens() {
        for seed in 0..200 {
            let drawn = Intensity::draw(Faults::NONE, 3, &mut Random::new(seed));
            assert_eq!(drawn, Intensity::calm(&mut Random::new(seed)));
            let drawn = Intensity::draw("crash".parse().unwrap(), 3, &mut Random::new(seed));
            assert_eq!((drawn.stall_chance, drawn.full_every_us, drawn.clock_drift), (0, 0, 0));
            assert_eq!((drawn.freeze_every_us, drawn.break_every_us, drawn.drop_chance), (0, 0, 0));
        }
    }

    #[test]
    fn some_seeds_leave_a_fault_out_and_most_use_it() {
        let alone = Faults::NONE.with(Fault::Crash);
        assert!((0..50).all(|s| Intensity::draw(alone, 1, &mut Random::new(s)).crash_every_us > 0));
        let used = (0..400)
            .filter(|s| Intensity::draw(Faults::ALL, 1, &mut Random::new(*s)).crash_every_us > 0)
            .count();
        assert!((200..380).contains(&used), "{used}");
    }
}
