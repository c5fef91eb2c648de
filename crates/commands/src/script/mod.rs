//! Scripts and functions.

use ordain_model::Registry;

/// Adds the procedures behind EVAL, FCALL, SCRIPT and FUNCTION.
pub fn register(registry: &mut Registry) {
    let _ = registry;
}
