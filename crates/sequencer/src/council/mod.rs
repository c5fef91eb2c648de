//! Who is master of what, where input is replicated asynchronously (calvin.md, section 4.12).

mod seats;

pub use seats::{Fence, Seat, Seats};
