//! Where a role says what it is executing, so that it can be read after the process has died of it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A place outside the process's own memory that holds the number of the transaction which a shard is executing.
///
/// Writing costs one store without ordering. The default is nowhere: then nothing is written. What stands there is
/// never read by a role, so it has no influence on any result.
#[derive(Clone, Copy, Default)]
pub struct UnderWay {
    own: Option<&'static AtomicU64>,
    /// The place for work that is given away.
    work: Option<&'static AtomicU64>,
    /// The last that was executed, once nothing is.
    latest: Option<&'static AtomicU64>,
}

impl UnderWay {
    /// Such a place, and one for the [work](crate::Work) that is given away; 0 there means that nothing is executed.
    pub const fn at(own: &'static AtomicU64, work: &'static AtomicU64) -> UnderWay {
        UnderWay { own: Some(own), work: Some(work), latest: None }
    }

    /// This place beside `other`, which goes on holding the number of the transaction that was executed last.
    #[must_use]
    pub const fn keeping(self, latest: &'static AtomicU64) -> UnderWay {
        UnderWay { latest: Some(latest), ..self }
    }

    /// The place where work that is given away notes what it executes; it goes on beside its role.
    #[must_use]
    pub const fn of_work(self) -> UnderWay {
        UnderWay { own: self.work, work: None, latest: None }
    }

    /// Computes something for the transaction with this number, which is executed for as long as that takes.
    pub fn during<T>(self, number: u64, compute: impl FnOnce() -> T) -> T {
        self.begin(number);
        let computed = compute();
        self.end();
        computed
    }

    /// Notes that the execution of the transaction with this number begins or goes on.
    #[inline]
    pub fn begin(self, number: u64) {
        if let Some(place) = self.own {
            place.store(number, Ordering::Relaxed);
        }
    }

    /// Notes that nothing is executed any more.
    #[inline]
    pub fn end(self) {
        if let (Some(own), Some(latest)) = (self.own, self.latest) {
            let number = own.load(Ordering::Relaxed);
            if number != 0 {
                latest.store(number, Ordering::Relaxed);
            }
        }
        self.begin(0);
    }

    /// The number of the transaction that is executed, or was last; 0 if there is none or none is noted. For the
    /// driver and for diagnostics beside the roles.
    pub fn latest(self) -> u64 {
        let read = |place: Option<&'static AtomicU64>| place.map_or(0, |place| place.load(Ordering::Relaxed));
        read(self.own).max(read(self.latest))
    }
}

impl fmt::Debug for UnderWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.own.is_some() { "UnderWay" } else { "UnderWay(nowhere)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_says_what_it_executes_beside_its_role() {
        static OWN: AtomicU64 = AtomicU64::new(0);
        static WORK: AtomicU64 = AtomicU64::new(0);
        let there = || (OWN.load(Ordering::Relaxed), WORK.load(Ordering::Relaxed));
        let under_way = UnderWay::at(&OWN, &WORK);
        under_way.begin(3);
        assert_eq!(under_way.of_work().during(7, there), (3, 7));
        assert_eq!(there(), (3, 0));
        under_way.end();
        assert_eq!(there(), (0, 0));
        UnderWay::default().of_work().begin(1);
    }

    #[test]
    fn the_latest_stays_when_nothing_is_executed_any_more() {
        static OWN: AtomicU64 = AtomicU64::new(0);
        static WORK: AtomicU64 = AtomicU64::new(0);
        static LATEST: AtomicU64 = AtomicU64::new(0);
        let under_way = UnderWay::at(&OWN, &WORK).keeping(&LATEST);
        assert_eq!(under_way.latest(), 0);
        under_way.begin(4);
        assert_eq!(under_way.latest(), 4, "it is executed");
        under_way.end();
        under_way.end();
        assert_eq!((under_way.latest(), OWN.load(Ordering::Relaxed)), (4, 0));
        assert_eq!(UnderWay::default().latest(), 0);
    }
}
