//! Long computations that are running on a node, so that an operator can end those that are not repeated elsewhere.
//!
//! A shard gives a long computation to another thread and says so here. What it says is for operators: no result depends on
//! it, except that of a computation which an operator ends, and only one whose outcome is not replayed from a log or
//! computed by another replica may be ended.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ids::ProcedureId;

/// The flag that ends a computation soon after it is set.
pub type Stop = Arc<AtomicBool>;

/// A driver's clock beside code that has none: it notes how long runs take.
///
/// Nothing of what it reads comes back to the code that it times, so it has no influence on any result.
pub trait Stopwatch: fmt::Debug + Send + Sync {
    /// Calls `run` once, and notes how long that took if it answers that it came to its end.
    fn time(&self, run: &mut dyn FnMut() -> bool);
}

/// The long computations that are running on a node. Clones share one list.
#[derive(Clone, Debug, Default)]
pub struct Computations(Arc<Mutex<Running>>);

#[derive(Debug, Default)]
struct Running {
    next: u64,
    /// By number: the procedure, and how to end it if it may be ended.
    running: BTreeMap<u64, (ProcedureId, Option<Stop>)>,
}

/// The answer to an operator who wants computations to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// No computation is running.
    Nothing,
    /// The computations of the kind that was meant will end within some milliseconds.
    Soon,
    /// A computation is running that other replicas execute too, or a restart will.
    Repeated,
    /// The computations that are running and may be ended are of another kind.
    OtherKind,
}

impl Computations {
    /// Runs a computation that is in the list meanwhile, with the flag that ends it if it may be ended.
    pub fn during<T>(
        &self,
        procedure: ProcedureId,
        stop: Option<Stop>,
        compute: impl FnOnce(Option<Stop>) -> T,
    ) -> T {
        let mut list = self.lock();
        let number = list.next;
        list.next += 1;
        list.running.insert(number, (procedure, stop.clone()));
        drop(list);
        let _listed = Listed { of: self, number };
        compute(stop)
    }

    /// Ends the computations of the procedures that are meant, if they may be ended.
    pub fn end(&self, is_meant: impl Fn(ProcedureId) -> bool) -> Ending {
        let list = self.lock();
        let mut ending = Ending::Nothing;
        for (procedure, stop) in list.running.values() {
            ending = match (stop, ending) {
                (Some(stop), _) if is_meant(*procedure) => {
                    stop.store(true, Ordering::Relaxed);
                    Ending::Soon
                }
                (_, Ending::Soon) => Ending::Soon,
                (None, _) | (_, Ending::Repeated) => Ending::Repeated,
                (Some(_), _) => Ending::OtherKind,
            };
        }
        ending
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        // Nothing panics while it is locked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a computation off the list, also if it panics.
struct Listed<'a> {
    of: &'a Computations,
    number: u64,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.of.lock().running.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ProcedureId = ProcedureId(1);
    const B: ProcedureId = ProcedureId(2);

    #[test]
    fn only_what_may_be_ended_and_is_meant_ends() {
        let list = Computations::default();
        let is_a = |procedure| procedure == A;
        assert_eq!(list.end(is_a), Ending::Nothing);
        let is_set = |stop: Option<Stop>| stop.map(|stop| stop.load(Ordering::Relaxed));
        list.during(B, Some(Stop::default()), |b| {
            assert_eq!(list.end(is_a), Ending::OtherKind);
            list.during(A, None, |none| {
                assert_eq!((list.end(is_a), is_set(none)), (Ending::Repeated, None));
                list.during(A, Some(Stop::default()), |a| {
                    assert_eq!((list.end(is_a), is_set(a)), (Ending::Soon, Some(true)));
                });
                assert_eq!(list.end(is_a), Ending::Repeated);
            });
            assert_eq!(is_set(b), Some(false));
        });
        assert_eq!(list.end(is_a), Ending::Nothing);
    }

    #[test]
    fn a_computation_that_panics_is_not_running_any_more() {
        let list = Computations::default();
        let panicking = || list.during(A, Some(Stop::default()), |_| panic!("as it should"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panicking)).is_err());
        assert_eq!(list.end(|_| true), Ending::Nothing);
    }
}
