//! The load of a run: how much clients ask for at once, and how often something goes wrong.
//!
//! A [`Profile`] is a name for a [`Load`]; every field of it is a knob of its own. A run in which every node crashes every few
//! milliseconds answers little and has batches of two transactions, so that mistakes which show in large batches, or long
//! after the fault that led to them, escape it. The profiles divide the work.

use std::fmt;
use std::str::FromStr;

/// A named load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Most requests are answered, batches hold eight transactions or more, faults come one after the other.
    #[default]
    Steady,
    /// Batches of thousands of fragments on several shards, few faults.
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
}

impl Load {
    /// The load of a profile.
    pub const fn of(profile: Profile) -> Load {
        let storm = Load {
            profile,
            clients: 8,
            pipeline: 4,
            session_chance: 500_000,
            session_pipeline: 1,
            think_us_max: 4_000,
        };
        match profile {
            Profile::Storm => storm,
            Profile::Steady | Profile::Large | Profile::Quiet => {
                Load { clients: 32, session_chance: 800_000, ..storm }
            }
        }
    }
}

impl Default for Load {
    fn default() -> Load {
        Load::of(Profile::default())
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
            assert_eq!(Load::of(profile).profile, profile);
        }
        assert!("calm".parse::<Profile>().unwrap_err().to_string().contains("`calm`"));
    }
}
