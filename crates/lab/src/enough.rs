//! The least that must be committed for a rate to mean something.
//!
//! Answers come in batches, and a batch may answer every client at once. Whether the last batch falls into the time
//! measured or just after it then changes a closed loop's commits by one for each client, so the clients must have
//! been answered [`ROUNDS`] times on average for the error to stay below a tenth. The shares of the event loops differ by
//! chance, by the square root of their commits: [`COMMITS`] keep that below a tenth too. In an open loop the rate
//! is given, and [`COMMITS`] of all together are asked for.

/// Answers to each client of a closed loop, on average.
pub const ROUNDS: u64 = 10;
/// Commits of each event loop or thread that has clients.
pub const COMMITS: u64 = 100;

/// The shortest time measured by an event loop, as a share of the longest.
const SHARE: f64 = 0.5;

/// The load of a run.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Event loops or threads that have clients.
    pub loops: usize,
    /// Clients of all of them.
    pub clients: usize,
    /// True: the rate is given.
    pub is_open: bool,
}

impl Load {
    /// Commits without which a run says nothing.
    pub fn least(&self) -> u64 {
        let loops = self.loops.clamp(1, self.clients.max(1)) as u64;
        if self.is_open { COMMITS } else { (COMMITS * loops).max(ROUNDS * self.clients as u64) }
    }

    /// The reason for which so many commits say nothing; none if they are enough.
    pub fn too_little(&self, committed: u64) -> Option<String> {
        let least = self.least();
        if committed == 0 {
            return Some("nothing was committed while measuring: measure for longer".to_owned());
        }
        (committed < least).then(|| {
            format!(
                "{committed} transactions were committed while measuring, and fewer than {least} say nothing of {} \
                 clients on {} event loops: measure for longer, or with fewer clients",
                self.clients, self.loops
            )
        })
    }
}

/// The event loops or threads that have clients, and how they measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Asking {
    /// Their number.
    pub loops: usize,
    /// Those of them that never saw that measuring had begun.
    missed: usize,
    /// The shortest and the longest time that one of them measured, seconds.
    seconds: Option<(f64, f64)>,
}

impl Asking {
    /// Adds a loop; `seconds` it measured, if a time ends the run and not a number of transactions.
    pub fn note(&mut self, seconds: Option<f64>, missed: bool) {
        self.loops += 1;
        self.missed += usize::from(missed);
        if let Some(seconds) = seconds {
            let (shortest, longest) = self.seconds.unwrap_or((seconds, seconds));
            self.seconds = Some((shortest.min(seconds), longest.max(seconds)));
        }
    }

    /// The reason for which their times of measuring say nothing; none if they do.
    pub fn not_together(&self) -> Option<String> {
        if self.loops == 0 {
            return Some("no event loop with clients has measured".to_owned());
        }
        if self.missed > 0 {
            return Some(format!(
                "{} event loops with clients never saw that measuring had begun",
                self.missed
            ));
        }
        let (shortest, longest) = self.seconds.filter(|(shortest, longest)| *shortest < longest * SHARE)?;
        Some(format!("an event loop measured for {shortest:.3} s where another measured for {longest:.3} s"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_loop_needs_rounds_and_commits_of_each_loop() {
        let closed = |loops, clients| Load { loops, clients, is_open: false };
        assert_eq!(closed(2, 20).least(), 200);
        assert_eq!(closed(2, 2_000).least(), 20_000);
        assert_eq!(closed(16, 1).least(), 100, "loops without clients have nothing to do");
        assert_eq!(Load { is_open: true, ..closed(16, 4_000) }.least(), 100);
        assert_eq!(closed(2, 20).too_little(200), None);
        let few = closed(2, 20).too_little(199).unwrap();
        assert!(few.starts_with("199 transactions") && few.contains("fewer than 200"), "{few}");
        assert!(closed(2, 20).too_little(0).unwrap().starts_with("nothing was committed"));
    }

    #[test]
    fn all_loops_measure_and_about_as_long() {
        let wrong = |loops: &[(Option<f64>, bool)]| {
            let mut asking = Asking::default();
            loops.iter().for_each(|(seconds, missed)| asking.note(*seconds, *missed));
            asking.not_together()
        };
        assert_eq!(wrong(&[(Some(1.0), false), (Some(0.5), false)]), None);
        assert!(wrong(&[(Some(0.49), false), (Some(1.0), false)]).unwrap().contains("0.490 s"));
        assert!(wrong(&[(Some(0.0), true), (Some(1.0), false)]).unwrap().starts_with("1 event loops"));
        assert!(wrong(&[]).unwrap().starts_with("no event loop"));
        // What ends after so many transactions ends on each loop by itself.
        assert_eq!(wrong(&[(None, false), (None, false)]), None);
    }
}
