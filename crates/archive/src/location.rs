//! What a store's URL names: a directory, or a bucket and what the names in it begin with.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, Checksum};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig};
use serde::{Deserialize, Serialize};

use crate::archive::ArchiveError;

/// The location of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Location {
    /// A directory.
    Directory(PathBuf),
    /// A bucket.
    Bucket {
        /// The bucket's name.
        bucket: String,
        /// The first part of all names in the bucket; may be empty.
        prefix: String,
    },
}

/// The reason why a URL is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{url}' is not the URL of a checkpoint store: {reason}: write file:///DIR or s3://BUCKET/PREFIX")]
pub struct LocationError {
    /// The URL, as it was written.
    pub url: String,
    /// The reason.
    pub reason: &'static str,
}

impl FromStr for Location {
    type Err = LocationError;

    fn from_str(url: &str) -> Result<Location, LocationError> {
        let wrong = |reason| LocationError { url: url.to_owned(), reason };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("it has no scheme"))?;
        match scheme {
            "file" if rest.starts_with('/') => Ok(Location::Directory(PathBuf::from(rest))),
            "file" => Err(wrong("a directory is named by its whole path, from the root on")),
            "s3" => {
                let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                if bucket.is_empty() || bucket.contains(['@', ':', '?']) {
                    return Err(wrong("there is no bucket; who asks is said by the environment, AWS_*"));
                }
                let prefix = Path::parse(prefix.trim_end_matches('/'));
                let prefix = prefix.map_err(|_| wrong("what comes after the bucket cannot begin a name"))?;
                Ok(Location::Bucket { bucket: bucket.to_owned(), prefix: prefix.to_string() })
            }
            _ => Err(wrong("there is no such kind of store")),
        }
    }
}

impl TryFrom<String> for Location {
    type Error = LocationError;

    fn try_from(url: String) -> Result<Location, LocationError> {
        url.parse()
    }
}

impl From<Location> for String {
    fn from(location: Location) -> String {
        location.to_string()
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Directory(path) => write!(f, "file://{}", path.display()),
            Location::Bucket { bucket, prefix } if prefix.is_empty() => write!(f, "s3://{bucket}"),
            Location::Bucket { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
        }
    }
}

/// The time that a connection may take to be made.
const CONNECT: &str = "5 seconds";
/// The time that one request may take: a part of an upload, at the worst.
const REQUEST: &str = "120 seconds";

impl Location {
    /// Tells whether a word on the command line is meant to be a location, and not the name of a file.
    pub fn is_one(word: &str) -> bool {
        word.contains("://")
    }

    /// Makes a way to it, and what all names in it begin with. Nothing is asked of a service yet.
    pub(crate) fn open(
        &self,
        environment: &Environment,
    ) -> Result<(Arc<dyn ObjectStore>, Path), ArchiveError> {
        match self {
            Location::Directory(path) => {
                let cannot = |reason: String| ArchiveError::Store { what: format!("use {self}"), reason };
                std::fs::create_dir_all(path).map_err(|error| cannot(error.to_string()))?;
                let store = LocalFileSystem::new_with_prefix(path).map_err(|e| cannot(e.to_string()))?;
                Ok((Arc::new(store.with_fsync(true)), Path::default()))
            }
            Location::Bucket { bucket, prefix } => {
                // A provider that was installed before does as well.
                let _ = rustls::crypto::ring::default_provider().install_default();
                let told = environment.0.iter().filter_map(|(key, value)| Some((key.parse().ok()?, value)));
                let builder = told
                    .fold(AmazonS3Builder::new(), |builder, (key, value)| builder.with_config(key, value));
                let store = builder
                    .with_bucket_name(bucket)
                    .with_checksum_algorithm(Checksum::SHA256)
                    // Not all that speak this protocol know how to remove many at once.
                    .with_disable_bulk_delete(true)
                    .with_retry(retry())
                    .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::ConnectTimeout), CONNECT)
                    .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), REQUEST)
                    .build()
                    .map_err(|error| ArchiveError::of(format!("use {self}"), &error))?;
                Ok((Arc::new(store), Path::from(prefix.as_str())))
            }
        }
    }
}

/// The environment's values for services: their addresses and the credentials.
#[derive(Clone, Default)]
pub struct Environment(Vec<(String, String)>);

impl Environment {
    /// The variables of this process: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT`,
    /// `AWS_ALLOW_HTTP`, and others of that prefix that the client knows.
    pub fn of_process() -> Environment {
        Environment::new(
            std::env::vars_os()
                .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?))),
        )
    }

    /// An environment of given variables.
    pub fn new(variables: impl IntoIterator<Item = (String, String)>) -> Environment {
        let known = variables.into_iter().map(|(key, value)| (key.to_ascii_lowercase(), value));
        Environment(known.filter(|(key, _)| key.starts_with("aws_")).collect())
    }
}

impl fmt::Debug for Environment {
    /// Leaves the credentials out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(key, _)| key)).finish()
    }
}

/// The client's own retries, for failures of a moment only: the archiver waits between attempts itself, and reports
/// them.
fn retry() -> RetryConfig {
    let backoff = BackoffConfig {
        init_backoff: Duration::from_millis(50),
        max_backoff: Duration::from_secs(1),
        base: 2.0,
    };
    RetryConfig { backoff, max_retries: 2, retry_timeout: Duration::from_secs(120) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_directory_or_a_bucket() {
        let location = |url: &str| url.parse::<Location>();
        assert_eq!(location("file:///a/b"), Ok(Location::Directory("/a/b".into())));
        for (url, bucket, prefix, shown) in [
            ("s3://b", "b", "", "s3://b"),
            ("s3://b/", "b", "", "s3://b"),
            ("s3://b/x/y/", "b", "x/y", "s3://b/x/y"),
        ] {
            let found = location(url).unwrap();
            assert_eq!(found, Location::Bucket { bucket: bucket.into(), prefix: prefix.into() });
            assert_eq!(found.to_string(), shown);
            assert_eq!(shown.parse(), Ok(found));
        }
        for wrong in
            ["", "dir", "/dir", "file://dir", "ftp://x/y", "s3:///x", "s3://me:key@b/x", "s3://b/../x"]
        {
            let said = location(wrong).unwrap_err().to_string();
            assert!(said.contains("file:///DIR") && said.contains(wrong), "{said}");
        }
        assert!(Location::is_one("s3://b") && !Location::is_one("/dir"));
    }
}
