//! The state that engines with strict two-phase locking share: lock modes of records and tables, and the locks of attempts. What an
//! engine with stamps knows of its attempts, and the gate of a table, are the same.
//!
//! A record is locked shared or exclusive. Each lock on a record implies an intention lock on the table of its participant,
//! and an access to the whole table locks that shared or exclusive (Gray, Lorie, Putzolu and Traiger, 1976).

mod attempts;
pub(crate) mod gate;
mod modes;
pub(crate) mod queued;

use ordain_commit::options::BACKOFF;
use ordain_model::Offer;

pub(crate) use attempts::{Attempt, Attempts, Held, both};
pub(crate) use modes::{Counts, Modes};

/// The options of engines that lock.
pub(crate) static OPTIONS: [Offer; 1] = [Offer::of(&BACKOFF)];
