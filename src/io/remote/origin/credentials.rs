//! Credentials that a service gives out: that of the machine, of the container or of an identity.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use object_store::{BackoffConfig, CredentialProvider, RetryConfig};

/// The beginning of the message of somebody without credentials.
pub(super) const NOBODY: &str = "no credentials: ";

/// Returns how often such a service is asked: on most machines there is none.
pub(super) fn few() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: 2,
        retry_timeout: Duration::from_secs(10),
    }
}

/// Credentials of a service; without any it says what else there is.
#[derive(Debug)]
pub(super) struct Asked<T> {
    service: Arc<dyn CredentialProvider<Credential = T>>,
    hint: &'static str,
}

impl<T> Asked<T> {
    /// Credentials of a service.
    pub(super) fn new(
        service: Arc<dyn CredentialProvider<Credential = T>>,
        hint: &'static str,
    ) -> Self {
        Self { service, hint }
    }
}

impl<T: Send + Sync + std::fmt::Debug> CredentialProvider for Asked<T> {
    type Credential = T;

    fn get_credential<'life, 'async_trait>(
        &'life self,
    ) -> Pin<Box<dyn Future<Output = object_store::Result<Arc<T>>> + Send + 'async_trait>>
    where
        'life: 'async_trait,
        Self: 'async_trait,
    {
        Box::pin(async move {
            let given = self.service.get_credential().await;
            given.map_err(|e| object_store::Error::Unauthenticated {
                path: String::new(),
                source: format!("{NOBODY}{} ({e})", self.hint).into(),
            })
        })
    }
}
