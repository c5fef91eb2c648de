//! Access: the users of a node, who is let in, and what was refused.
//!
//! One [`Access`] is shared by all event loops and the admin server. A session keeps the [`User`] that it has logged in as
//! and asks for it again when [`Access::version`] has moved, which costs a read of one atomic a turn. Everything else here is
//! behind a lock that only logging in, changing users and refusing something take.

mod file;
mod throttle;
mod users;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ordain_model::Micros;

use throttle::Throttle;

pub use file::UsersFileError;
pub use throttle::Attempt;
pub use users::{DEFAULT, FileError, ModifierError, ModifiersError, User, Users, is_name};

/// How many entries ACL LOG keeps.
const LOG_MAX: usize = 128;
/// An entry that is like one no older than this is counted with it.
const ALIKE: Micros = Micros::from_millis(60_000);
/// How much of what was refused is noted, bytes.
const OBJECT_MAX: usize = 128;

/// The reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// A wrong password.
    Auth,
    /// A command.
    Command,
    /// A key.
    Key,
    /// A channel.
    Channel,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 4] = [Reason::Auth, Reason::Command, Reason::Key, Reason::Channel];

    /// The name in ACL LOG.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Auth => "auth",
            Reason::Command => "command",
            Reason::Key => "key",
            Reason::Channel => "channel",
        }
    }
}

/// An entry of ACL LOG.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The number of times.
    pub count: u64,
    /// The reason why it was refused.
    pub reason: Reason,
    /// In a MULTI block, and not as it came.
    pub in_multi: bool,
    /// The command, key or channel.
    pub object: Box<[u8]>,
    /// Whose connection it was, or who it wanted to be.
    pub user: Box<[u8]>,
    /// The time at which it last happened.
    pub at: Micros,
    /// The line of CLIENT LIST of the last connection.
    pub client: Box<str>,
}

#[derive(Debug, Default)]
struct State {
    users: Users,
    throttle: Throttle,
    log: VecDeque<Refusal>,
}

/// The users of a node, and the log of refusals.
#[derive(Debug, Default)]
pub struct Access {
    state: Mutex<State>,
    version: AtomicU64,
    is_restricted: AtomicBool,
    refused: [AtomicU64; Reason::ALL.len()],
}

impl Access {
    /// With these users.
    pub fn new(users: Users) -> Access {
        let is_restricted = AtomicBool::new(users.are_restricted());
        Access { state: Mutex::new(State { users, ..State::default() }), is_restricted, ..Access::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rises with every change of users.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Tells whether the rights of any user are restricted.
    #[inline]
    pub fn is_restricted(&self) -> bool {
        self.is_restricted.load(Ordering::Acquire)
    }

    /// Looks at the users.
    pub fn users<T>(&self, look: impl FnOnce(&Users) -> T) -> T {
        look(&self.state().users)
    }

    /// Changes the users.
    ///
    /// # Errors
    /// Those of the change.
    pub fn change<T, E>(&self, change: impl FnOnce(&mut Users) -> Result<T, E>) -> Result<T, E> {
        let mut state = self.state();
        let result = change(&mut state.users);
        self.is_restricted.store(state.users.are_restricted(), Ordering::Release);
        self.version.fetch_add(1, Ordering::Release);
        result
    }

    /// The user with this name and id, as it is now.
    pub fn again(&self, name: &[u8], id: u64) -> Option<Arc<User>> {
        self.users(|users| users.get(name).filter(|user| user.id() == id).cloned())
    }

    /// Takes note of an attempt to log in from an address.
    pub fn attempt(&self, peer: &str, now: Micros) -> Attempt {
        self.state().throttle.attempt(peer, now)
    }

    /// The user, if the password is its. Otherwise it is counted against the address. It takes as long for a user that
    /// there is none of.
    pub fn log_in(&self, name: &[u8], password: &[u8], peer: &str, now: Micros) -> Option<Arc<User>> {
        let user = self.users(|users| users.get(name).cloned());
        let unknown = || Arc::new(User::closed(name, 0));
        let (user, is_there) = (user.clone().unwrap_or_else(unknown), user.is_some());
        if user.accepts(password) & is_there {
            return Some(user);
        }
        self.refused[Reason::Auth as usize].fetch_add(1, Ordering::Relaxed);
        self.state().throttle.failed(peer, now);
        None
    }

    /// Counts something that was refused for another reason than a wrong password.
    pub fn count(&self, reason: Reason) {
        self.refused[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The number of refusals for a reason.
    pub fn refused(&self, reason: Reason) -> u64 {
        self.refused[reason as usize].load(Ordering::Relaxed)
    }

    /// Notes something that was refused in ACL LOG.
    pub fn note(&self, refusal: Refusal) {
        let mut state = self.state();
        let is_like = |old: &Refusal| {
            (old.reason, old.in_multi, &old.object, &old.user)
                == (refusal.reason, refusal.in_multi, &refusal.object, &refusal.user)
                && refusal.at.since(old.at) <= ALIKE
        };
        let old = state.log.iter().position(is_like).and_then(|at| state.log.remove(at));
        let count = refusal.count + old.map_or(0, |old| old.count);
        let object = refusal.object[..refusal.object.len().min(OBJECT_MAX)].into();
        state.log.push_front(Refusal { count, object, ..refusal });
        state.log.truncate(LOG_MAX);
    }

    /// The newest entries of ACL LOG, the newest first.
    pub fn log(&self, count: usize) -> Vec<Refusal> {
        self.state().log.iter().take(count).cloned().collect()
    }

    /// Forgets the entries of ACL LOG.
    pub fn clear_log(&self) {
        self.state().log.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(object: &[u8], at: u64) -> Refusal {
        Refusal {
            count: 1,
            reason: Reason::Key,
            in_multi: false,
            object: object.into(),
            user: b"u".as_slice().into(),
            at: Micros(at),
            client: "".into(),
        }
    }

    #[test]
    fn the_log_counts_what_is_alike_and_is_bounded() {
        let access = Access::default();
        (0..10).for_each(|i| access.note(refusal(b"k", i)));
        access.note(refusal(b"k", 10 + ALIKE.0));
        let log = access.log(10);
        assert_eq!(log.iter().map(|entry| entry.count).collect::<Vec<_>>(), [1, 10]);
        (0..1000u32).for_each(|i| access.note(refusal(&i.to_be_bytes(), 0)));
        assert_eq!(access.log(usize::MAX).len(), LOG_MAX);
        access.note(refusal(&[b'x'; 1000], 0));
        assert_eq!(access.log(1)[0].object.len(), OBJECT_MAX);
        access.clear_log();
        assert!(access.log(1).is_empty());
    }

    #[test]
    fn wrong_passwords_are_counted_for_any_user() {
        let access = Access::new(Users::parse(b"user a on >p\nuser default on >d").unwrap());
        let log_in =
            |name: &[u8], password: &[u8]| access.log_in(name, password, "10.0.0.1:5", Micros(0)).is_some();
        assert!(log_in(b"a", b"p") && log_in(b"default", b"d"));
        assert!(!log_in(b"a", b"d") && !log_in(b"nobody", b"p") && !log_in(b"default", b""));
        assert_eq!(access.refused(Reason::Auth), 3);
        (0..5).for_each(|_| _ = log_in(b"a", b"x"));
        assert_ne!(access.attempt("10.0.0.1:99", Micros(0)), Attempt::Now);
        assert_eq!(access.attempt("10.0.0.2:99", Micros(0)), Attempt::Now);
    }
}
