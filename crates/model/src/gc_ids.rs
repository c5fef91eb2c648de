//! The ways in which others learn which transactions that only read are over (fwkv.md, 4.12 and section 6).

use crate::named::named;

named! {
    /// The word of a home about its transactions that only read, whose names are in the sets of others' writes.
    GcIds, "no way to forget readers" {
        /// A number below which all are over.
        #[default]
        Watermark = "watermark";
        /// The ones that are under way, as soon as one is over, as the paper's `Remove` does.
        Remove = "remove";
    }
}
