//! The object that says that a checkpoint is in the archive, and of what it is.
//!
//! It is JSON, for people too. What it says is not trusted beyond its purpose: to find what belongs together, and to refuse
//! early and in words what does not fit. The state's own header and checksums are what a restore relies on.

use ordain_model::{Epoch, Millis};
use serde::{Deserialize, Serialize};

/// The version of the object.
const FORMAT: u32 = 1;

/// The owner of a checkpoint: the identity of a node's directory, as far as it stays the same on another disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The cluster's name, or what a node on its own was called at its first start.
    pub cluster: String,
    /// The node is on its own.
    pub alone: bool,
    /// The engine whose results it holds.
    pub engine: String,
    /// The version of the layout.
    pub layout: u32,
    /// The first slot of each partition.
    pub starts: Vec<usize>,
    /// The prefixes of each region, as text; none if no region has any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<Vec<String>>,
    /// The partition.
    pub partition: u16,
    /// The replication of its input.
    pub replication: String,
}

/// The content of the seal of a complete checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealed {
    format: u32,
    /// The checkpoint's epoch.
    pub epoch: u64,
    /// The time when it became complete on the node, milliseconds since the Unix epoch.
    pub completed_ms: u64,
    /// The length of the state.
    pub bytes: u64,
    /// The node that it was copied from.
    pub node: u16,
    /// The checkpoint's owner.
    #[serde(flatten)]
    pub owner: Owner,
}

impl Sealed {
    /// Makes a seal.
    pub fn new(epoch: Epoch, at: Millis, bytes: u64, node: u16, owner: Owner) -> Sealed {
        Sealed { format: FORMAT, epoch: epoch.0, completed_ms: at.0, bytes, node, owner }
    }

    /// The whole content of the object.
    pub fn encode(&self) -> Vec<u8> {
        // Strings and numbers alone: nothing in it can fail.
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }

    /// Reads it.
    ///
    /// # Errors
    /// In words why it is none.
    pub fn decode(bytes: &[u8]) -> Result<Sealed, String> {
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let Version { format } = serde_json::from_slice(bytes).map_err(|e| format!("damaged: {e}"))?;
        if format != FORMAT {
            return Err(format!(
                "it has format {format} and this program reads format {FORMAT}: use the program that wrote it"
            ));
        }
        serde_json::from_slice(bytes).map_err(|e| format!("damaged: {e}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_comes_back_and_another_version_is_named() {
        let owner = Owner {
            cluster: "c".into(),
            alone: false,
            engine: "calvin".into(),
            layout: 1,
            starts: vec![0, 512],
            regions: vec![vec!["eu:".into()], vec![]],
            partition: 1,
            replication: "sync".into(),
        };
        let sealed = Sealed::new(Epoch(7), Millis(9), 512, 3, owner);
        let bytes = sealed.encode();
        assert_eq!(Sealed::decode(&bytes), Ok(sealed));
        for len in 0..bytes.len() {
            assert!(Sealed::decode(&bytes[..len]).unwrap_err().contains("damaged"), "{len}");
        }
        let later = String::from_utf8(bytes).unwrap().replace("\"format\": 1", "\"format\": 2");
        assert!(Sealed::decode(later.as_bytes()).unwrap_err().contains("format 2"));
    }
}
