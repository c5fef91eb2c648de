//! Checkpoints as they are listed and verified, a row each, whether they lie in a node's directory or in a store.

use std::fmt;
use std::path::Path;

use ordain_checkpoint::Totals;
use ordain_lab::report;
use serde_json::{Value, json};

/// The result of inspecting a checkpoint.
#[derive(Debug)]
pub struct Inspection {
    pub is_complete: bool,
    /// If it was read and is sound.
    pub totals: Option<Totals>,
    /// The reason why it cannot be used.
    pub reason: Option<String>,
}

impl Inspection {
    /// The state of the checkpoint, in a word.
    pub fn standing(&self) -> &'static str {
        match (&self.reason, self.is_complete) {
            (Some(_), true) => "damaged",
            (None, true) => "complete",
            (_, false) => "unfinished",
        }
    }

    /// Only what is complete counts, so only that can be damaged.
    fn is_sound(&self) -> bool {
        self.reason.is_none() || !self.is_complete
    }

    fn json(&self) -> Value {
        json!({
            "standing": self.standing(),
            "records": self.totals.map(|totals| totals.records),
            "outcomes": self.totals.map(|totals| totals.outcomes),
            "digest": self.totals.map(|totals| totals.digest.to_string()),
            "reason": self.reason,
        })
    }
}

/// The end of a row: what it holds, or why it cannot be used.
impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Totals { records, outcomes, digest }) = &self.totals {
            write!(f, "  {records} records, {outcomes} outcomes, digest {digest}")?;
        }
        self.reason.iter().try_for_each(|reason| write!(f, "  {reason}"))
    }
}

/// A checkpoint, as it is printed.
pub trait Row: fmt::Display {
    /// The result of inspecting it.
    fn inspection(&self) -> &Inspection;

    /// All else that is known of it, as a JSON object.
    fn json(&self) -> Value;
}

/// Prints rows as they come, and writes them to a file if one is named. True: what counts is sound.
///
/// # Errors
/// The file cannot be written.
pub fn show<R: Row>(rows: impl Iterator<Item = R>, json: Option<&Path>) -> anyhow::Result<bool> {
    let rows: Vec<R> = rows.inspect(|row| println!("{row}")).collect();
    let complete = rows.iter().filter(|row| row.inspection().is_complete).count();
    let sound = rows.iter().all(|row| row.inspection().is_sound());
    println!("{} checkpoints, {complete} complete{}", rows.len(), if sound { "" } else { ", some damaged" });
    let rows: Vec<Value> = rows.iter().map(whole).collect();
    report::write_json(json, &json!({ "checkpoints": rows, "sound": sound }))?;
    Ok(sound)
}

fn whole<R: Row>(row: &R) -> Value {
    let mut whole = row.json();
    if let (Value::Object(whole), Value::Object(inspection)) = (&mut whole, row.inspection().json()) {
        whole.extend(inspection);
    }
    whole
}

#[cfg(test)]
mod tests {
    use ordain_model::Digest;

    use super::*;

    struct Known(Inspection);

    impl fmt::Display for Known {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{}{}", self.0.standing(), self.0)
        }
    }

    impl Row for Known {
        fn inspection(&self) -> &Inspection {
            &self.0
        }

        fn json(&self) -> Value {
            json!({ "epoch": 7 })
        }
    }

    fn known(is_complete: bool, reason: Option<&str>) -> Known {
        let totals = Totals { records: 3, outcomes: 1, digest: Digest::default() };
        let totals = reason.is_none().then_some(totals);
        Known(Inspection { is_complete, totals, reason: reason.map(str::to_owned) })
    }

    #[test]
    fn only_what_is_complete_can_be_damaged() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rows.json");
        let unfinished = || known(false, Some("it has no end"));
        assert!(show([known(true, None), unfinished()].into_iter(), Some(&path)).unwrap());
        let json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let [complete, other] = &json["checkpoints"].as_array().unwrap()[..] else { panic!("{json}") };
        assert_eq!((&complete["epoch"], &complete["records"]), (&json!(7), &json!(3)));
        assert_eq!((&other["standing"], &other["reason"]), (&json!("unfinished"), &json!("it has no end")));
        assert!(known(true, None).to_string().starts_with("complete  3 records, 1 outcomes"));
        assert!(!show([known(true, Some("a byte is wrong"))].into_iter(), None).unwrap());
        assert!(show([unfinished()].into_iter(), Some(Path::new("/proc/no/such"))).is_err());
    }
}
