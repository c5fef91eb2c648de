//! The settings under which planted bugs are looked for.

use ordain_checker::ViolationKind;
use ordain_role::Bug;

/// A planted bug, for people and for those who look for it.
pub(in crate::sim) struct Planted {
    pub(super) bug: Bug,
    /// The invariant of docs/invariants.md that it breaks.
    pub(super) invariant: &'static str,
    /// The mistake, in a sentence.
    pub(super) mistake: &'static str,
    /// Each must find it.
    pub(super) settings: &'static [Setting],
    /// The test that finds it, where no simulated run can.
    pub(super) by_test: Option<&'static str>,
}

/// The flags of runs that must find a bug.
pub(in crate::sim) struct Setting {
    /// The flags of `ordain sim`, the engine first.
    pub(super) flags: &'static str,
    /// Seeds that are known to find the bug, which tests try first.
    pub(super) seeds: &'static [u64],
    /// The reason why a node that stops itself counts: a check of the product that is not beside the mistake.
    pub(super) stops: Option<&'static str>,
    /// The reason why fewer than ten of 60 seeds may find the bug. Tests do without the setting then.
    pub(super) rare: Option<&'static str>,
    /// The reason why tests do without the setting; `cargo xtask bugs` does not.
    pub(super) left_out: Option<&'static str>,
}

impl Setting {
    pub(super) const fn new(flags: &'static str) -> Setting {
        Setting { flags, seeds: &[], stops: None, rare: None, left_out: None }
    }

    /// Adds seeds that find the bug.
    pub(super) const fn found_by(self, seeds: &'static [u64]) -> Setting {
        Setting { seeds, ..self }
    }

    /// Lets a node that stops itself count, for a reason.
    pub(super) const fn or_stops(self, why: &'static str) -> Setting {
        Setting { stops: Some(why), ..self }
    }

    /// Lets the bug be found by few seeds, for a reason.
    pub(super) const fn rarely(self, why: &'static str) -> Setting {
        Setting { rare: Some(why), ..self }
    }

    /// Leaves the setting out of tests, for a reason.
    pub(super) const fn left_out(self, why: &'static str) -> Setting {
        Setting { left_out: Some(why), ..self }
    }

    pub(super) fn engine(&self) -> &'static str {
        let mut words = self.flags.split(' ');
        words.find(|word| *word == "--engine").and(words.next()).unwrap_or("calvin")
    }

    /// The kinds of violations that count.
    pub(super) fn kinds(&self) -> impl Iterator<Item = ViolationKind> {
        ViolationKind::ALL.into_iter().filter(|kind| match kind {
            kind if kind.is_of_a_role() => self.stops.is_some(),
            _ => true,
        })
    }

    /// The words of the command line after `ordain sim`, but for the seeds.
    pub(super) fn words(&self, bug: Bug) -> impl Iterator<Item = &'static str> {
        // Mistakes behind the sessions are looked for with clients that call procedures: they ask for more kinds of transactions.
        let speak = match self.flags.contains(" --clients-speak ") {
            true => &[][..],
            false => &["--clients-speak", "calls"],
        };
        let words = self.flags.split(' ').chain(speak.iter().copied());
        words.chain(["--plant", bug.name(), "--unasked"])
    }
}

pub(super) const fn planted(
    bug: Bug,
    invariant: &'static str,
    mistake: &'static str,
    settings: &'static [Setting],
) -> Planted {
    Planted { bug, invariant, mistake, settings, by_test: None }
}

pub(super) const fn in_test(
    bug: Bug,
    invariant: &'static str,
    mistake: &'static str,
    test: &'static str,
) -> Planted {
    Planted { bug, invariant, mistake, settings: &[], by_test: Some(test) }
}

pub(super) const fn with(flags: &'static str) -> Setting {
    Setting::new(flags)
}
