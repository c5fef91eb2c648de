//! Where a role says what it is executing, so that it can be read after the process has died of it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A place outside the process's own memory that holds the number of the transaction which a shard is executing.
///
/// Writing costs one store without ordering. The default is nowhere: then nothing is written. What stands there is
/// never read by a role, so it has no influence on any result.
#[derive(Clone, Copy, Default)]
pub struct UnderWay(Option<&'static AtomicU64>);

impl UnderWay {
    /// Such a place; 0 there means that nothing is executed.
    pub const fn at(place: &'static AtomicU64) -> UnderWay {
        UnderWay(Some(place))
    }

    /// The execution of the transaction with this number begins or goes on.
    #[inline]
    pub fn begin(self, number: u64) {
        if let Some(place) = self.0 {
            place.store(number, Ordering::Relaxed);
        }
    }

    /// Nothing is executed any more.
    #[inline]
    pub fn end(self) {
        self.begin(0);
    }
}

impl fmt::Debug for UnderWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "UnderWay" } else { "UnderWay(nowhere)" })
    }
}
