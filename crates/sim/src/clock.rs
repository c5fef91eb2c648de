//! A node's clocks, as far from the true time as the faults allow.

use ordain_model::Micros;
use ordain_role::Now;

/// The wall-clock time at which every simulation begins: a fixed day in 2026.
pub const START_WALL: Micros = Micros(1_790_000_000_000_000);

/// The clocks of one node during one life of it.
#[derive(Clone, Debug)]
pub struct Clock {
    started: Micros,
    /// The advance of the clock in a million true microseconds.
    rate: u64,
    /// The sum of the wall clock's jumps.
    jumped: i64,
    /// Where the wall clock stands still, if it does.
    held: Option<Micros>,
}

impl Clock {
    /// The clock of a node that starts at `now`. `drift` is added to the rate, per million; `jumped` is where
    /// the wall clock was left by the life before.
    pub fn new(now: Micros, drift: i64, jumped: i64) -> Clock {
        let rate = 1_000_000i64.saturating_add(drift).max(1) as u64;
        Clock { started: now, rate, jumped, held: None }
    }

    /// Reads the node's clocks at a true time.
    pub fn read(&self, now: Micros) -> Now {
        let elapsed = scale(now.since(self.started).0, self.rate, 1_000_000);
        let wall = START_WALL.plus(self.started).0.saturating_add(elapsed).saturating_add_signed(self.jumped);
        Now { elapsed: Micros(elapsed), wall: self.held.unwrap_or(Micros(wall)) }
    }

    /// The true time that passes while the node's clock advances by `delay`, rounded up.
    pub fn true_time(&self, delay: Micros) -> Micros {
        Micros(scale(delay.0, 1_000_000, self.rate).saturating_add(u64::from(self.rate != 1_000_000)))
    }

    /// Moves the wall clock.
    pub fn jump(&mut self, by: i64) {
        self.jumped = self.jumped.saturating_add(by);
    }

    /// Stops the wall clock at a time, for the rest of this life of the node.
    pub fn hold(&mut self, wall: Micros) {
        self.held = Some(wall);
    }

    /// The sum of the wall clock's jumps.
    pub fn jumped(&self) -> i64 {
        self.jumped
    }
}

fn scale(n: u64, by: u64, of: u64) -> u64 {
    u64::try_from(u128::from(n) * u128::from(by) / u128::from(of)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_true_clock_shows_the_true_time() {
        let clock = Clock::new(Micros(100), 0, 0);
        assert_eq!(clock.read(Micros(150)).elapsed, Micros(50));
        assert_eq!(clock.read(Micros(150)).wall, START_WALL.plus(Micros(150)));
        assert_eq!(clock.true_time(Micros(70)), Micros(70));
    }

    #[test]
    fn a_timer_never_fires_before_the_node_s_own_clock_says_so() {
        for drift in [-200_000, -1, 1, 70_000] {
            let clock = Clock::new(Micros(0), drift, 0);
            for delay in [1, 999, 123_457] {
                let fired = clock.true_time(Micros(delay));
                assert!(clock.read(fired).elapsed.0 >= delay, "drift {drift}, delay {delay}");
            }
        }
    }

    #[test]
    fn jumps_move_the_wall_clock_alone() {
        let mut clock = Clock::new(Micros(0), 0, 0);
        let before = clock.read(Micros(10));
        clock.jump(-5);
        assert_eq!(clock.read(Micros(10)).elapsed, before.elapsed);
        assert_eq!(clock.read(Micros(10)).wall.0, before.wall.0 - 5);
        clock.jump(i64::MIN);
        assert_eq!(clock.read(Micros(10)).wall, Micros(0));
    }
}
