//! The load of a run: how much clients ask for at once, and how often something goes wrong.
//!
//! A [`Profile`] is a name for a [`Load`]; every field of it is a knob of its own. A run in which every node crashes every few
//! milliseconds answers little and has batches of two transactions, so that mistakes which show in large batches, or long
//! after the fault that led to them, escape it. The profiles divide the work.

use std::fmt;
use std::str::FromStr;

use ordain_model::Random;

/// A named load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Most requests are answered, batches hold eight transactions or more, faults come one after the other.
    #[default]
    Steady,
    /// Batches of thousands of fragments on several shards.
    Large,
    /// One fault, of a kind and at a moment that the seed draws, in a long quiet time.
    Quiet,
    /// Faults of every kind on every node, each every few milliseconds.
    Storm,
}

impl Profile {
    /// All of them, with their names on the command line.
    pub const ALL: [(Profile, &'static str); 4] = [
        (Profile::Steady, "steady"),
        (Profile::Large, "large"),
        (Profile::Quiet, "quiet"),
        (Profile::Storm, "storm"),
    ];
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Profile::ALL.iter().find(|(profile, _)| profile == self).map_or("", |(_, name)| *name);
        f.write_str(name)
    }
}

/// The pace of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultPace {
    /// Each kind has a pace of its own on every node, drawn from the seed: a storm.
    Own,
    /// One comes after the other, at one pace for the whole cluster.
    Every {
        /// The mean virtual time between two of them, in microseconds.
        mean_us: u64,
    },
    /// One comes in the whole run, at a moment that the seed draws.
    Once,
}

impl fmt::Display for FaultPace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultPace::Own => f.write_str("each at a pace of its own"),
            FaultPace::Every { mean_us } => write!(f, "one every {mean_us} us"),
            FaultPace::Once => f.write_str("one"),
        }
    }
}

/// A name that is no profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown profile `{0}`: say steady, large, quiet or storm")]
pub struct UnknownProfile(String);

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(text: &str) -> Result<Profile, UnknownProfile> {
        let found = Profile::ALL.iter().find(|(_, name)| *name == text);
        found.map(|(profile, _)| *profile).ok_or_else(|| UnknownProfile(text.to_owned()))
    }
}

/// The load of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// The profile that the other fields began as.
    pub profile: Profile,
    /// The number of clients.
    pub clients: u32,
    /// The most requests that a client without a session has under way.
    pub pipeline: usize,
    /// The chance of a client to have a session, per million.
    pub session_chance: u32,
    /// The most requests that a client with a session has under way.
    pub session_pipeline: usize,
    /// The longest time that a client thinks before it asks, in virtual microseconds.
    pub think_us_max: u64,
    /// The number of requests after which all clients rest; 0 for never.
    pub wave: u64,
    /// The mean time of such a rest, in virtual microseconds.
    pub rest_us: u64,
    /// The most keys that a request names, and the most calls of a block, as a multiple of what is usual.
    pub breadth: u64,
    /// The pace of faults.
    pub faults: FaultPace,
    /// The mean time that a node is down or stands still, and that the network is cut, in virtual microseconds; 0: as the seed
    /// draws it, mostly short.
    pub outage_us: u64,
    /// The chance of a node that starts, per million, to lose power again as soon as it catches up.
    pub relapse_chance: u32,
    /// The chance of an incident, per million, to hit a node that leads a partition, if there is one.
    pub leader_chance: u32,
}

impl Load {
    /// The load of a profile on so many partitions: each gets its batches from as many clients, unless the profile is the storm.
    pub fn of(profile: Profile, partitions: u16) -> Load {
        let partitions = u32::from(partitions);
        let storm = Load {
            profile,
            clients: 8,
            pipeline: 4,
            session_chance: 500_000,
            session_pipeline: 1,
            think_us_max: 4_000,
            wave: 0,
            rest_us: 0,
            breadth: 1,
            faults: FaultPace::Own,
            outage_us: 0,
            relapse_chance: 0,
            leader_chance: 0,
        };
        let steady = Load {
            clients: 128 * partitions,
            session_chance: 900_000,
            faults: FaultPace::Every { mean_us: 10_000 },
            ..storm
        };
        match profile {
            Profile::Storm => storm,
            Profile::Steady => steady,
            Profile::Large => Load {
                clients: 64 * partitions,
                pipeline: 16,
                session_chance: 500_000,
                think_us_max: 1_000,
                breadth: 16,
                faults: FaultPace::Every { mean_us: 20_000 },
                ..steady
            },
            Profile::Quiet => Load {
                clients: 64 * partitions,
                think_us_max: 1_000,
                wave: 64 * u64::from(partitions),
                rest_us: 500_000,
                faults: FaultPace::Once,
                ..steady
            },
        }
    }
}

impl Load {
    /// Draws the time that a client thinks, in virtual microseconds. In a storm most think briefly and so ask at once when
    /// they are answered at once; else requests are spread evenly.
    pub(crate) fn think(&self, random: &mut Random) -> u64 {
        match self.faults {
            FaultPace::Own => random.tail(self.think_us_max),
            _ => random.between(0, self.think_us_max),
        }
    }

    /// Draws the time that an outage lasts, in virtual microseconds, of which the seed has drawn the longest.
    pub(crate) fn outage(&self, longest_us: u64, random: &mut Random) -> u64 {
        match self.outage_us {
            0 => 1 + random.tail(longest_us),
            mean_us => random.between(1, 2 * mean_us),
        }
    }

    /// Draws the time until a client whose node is gone connects again, in virtual microseconds. In a storm that is soon; else one
    /// without a session stays away for longer, or it would do all the asking while those with a session wait for answers.
    pub(crate) fn reconnects_after(&self, has_session: bool, random: &mut Random) -> u64 {
        match self.faults {
            FaultPace::Own => random.tail(2_000),
            _ if has_session => random.tail(2_000),
            _ => random.between(0, 50_000),
        }
    }
}

impl Default for Load {
    fn default() -> Load {
        Load::of(Profile::default(), 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        for (profile, name) in Profile::ALL {
            assert_eq!(name.parse(), Ok(profile));
            assert_eq!(profile.to_string(), name);
            assert_eq!(Load::of(profile, 1).profile, profile);
        }
        assert!("calm".parse::<Profile>().unwrap_err().to_string().contains("`calm`"));
    }
}
