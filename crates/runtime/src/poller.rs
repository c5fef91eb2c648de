//! Where a thread sleeps: sockets, wake-ups from other threads, and a timer of microseconds.
//!
//! `mio` rounds its timeout up to whole milliseconds, which is an eternity for an epoch that waits 100 us for
//! company; so short sleeps are timed by a timerfd in the same poll.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use ordain_model::Micros;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use crate::mailbox::Party;

const WAKE: Token = Token(usize::MAX);
const TIMER: Token = Token(usize::MAX - 1);
/// From here on a millisecond more or less does not matter, and the timeout of the poll itself will do.
const LONG: Micros = Micros::from_millis(20);

/// A poll with its waker and its timer.
#[derive(Debug)]
pub(crate) struct Poller {
    poll: Poll,
    events: Events,
    timer: OwnedFd,
    /// The time at which the timer goes off; zero if it did or was never set.
    timer_at: Micros,
}

impl Poller {
    /// A poller, and the party that stands for its thread.
    ///
    /// # Errors
    /// The system's, when it has no file descriptors left.
    pub(crate) fn new() -> io::Result<(Poller, Arc<Party>)> {
        let poll = Poll::new()?;
        let party = Party::new(Waker::new(poll.registry(), WAKE)?);
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        // Edge-triggered: every expiry is an event, whether the one before was read or not.
        poll.registry().register(&mut SourceFd(&timer.as_raw_fd()), TIMER, Interest::READABLE)?;
        let poller = Poller { poll, events: Events::with_capacity(1024), timer, timer_at: Micros(0) };
        Ok((poller, Arc::new(party)))
    }

    /// The registry of sockets.
    pub(crate) fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    /// Looks at the sockets without sleeping.
    pub(crate) fn look(&mut self) {
        self.poll(Some(Duration::ZERO));
    }

    /// Sleeps until something happens.
    pub(crate) fn wait_forever(&mut self) {
        self.poll(None);
    }

    /// Sleeps until something happens or the time `until` has come; it is `now`.
    pub(crate) fn wait_until(&mut self, now: Micros, until: Micros) {
        let delay = until.since(now);
        if delay == Micros(0) {
            return self.look();
        }
        if delay >= LONG {
            return self.poll(Some(Duration::from_micros(delay.0)));
        }
        if self.timer_at != until {
            let spec = Itimerspec {
                it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
                it_value: Timespec { tv_sec: 0, tv_nsec: delay.0 as i64 * 1000 },
            };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec)
                .expect("a timer that this process holds open can be set to less than a second");
            self.timer_at = until;
        }
        self.poll(None);
    }

    fn poll(&mut self, timeout: Option<Duration>) {
        match self.poll.poll(&mut self.events, timeout) {
            Ok(()) => {}
            // A signal handler ran: as good as a wake-up without a cause.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => self.events.clear(),
            Err(error) => panic!("cannot poll: {error}"),
        }
        if self.events.iter().any(|event| event.token() == TIMER) {
            self.timer_at = Micros(0);
        }
    }

    /// The readiness events since the last poll.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &mio::event::Event> {
        self.events.iter().filter(|event| event.token() < TIMER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[test]
    fn a_short_sleep_ends_in_time_and_not_before() {
        let clock = Clock::start();
        let (mut poller, _party) = Poller::new().unwrap();
        for delay in [1, 50, 300, 1_500, 25_000].map(Micros) {
            let start = clock.now().elapsed;
            let until = start.plus(delay);
            let mut now = start;
            while now < until {
                poller.wait_until(now, until);
                now = clock.now().elapsed;
            }
            assert!(now >= until);
        }
    }

    #[test]
    fn a_wake_up_before_the_sleep_is_not_lost() {
        let (mut poller, party) = Poller::new().unwrap();
        party.wake();
        poller.wait_forever();
        assert_eq!(poller.sockets().count(), 0);
    }
}
