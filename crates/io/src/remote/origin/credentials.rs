//! Credentials from a service: of the machine, of the container or of an identity provider.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use object_store::{BackoffConfig, CredentialProvider, RetryConfig};

/// The beginning of the error message when there are no credentials.
pub(super) const NOBODY: &str = "no credentials: ";

/// Returns the retries for such a service: most machines have none.
pub(super) fn few() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: 2,
        retry_timeout: Duration::from_secs(10),
    }
}

/// How long a failed service is not asked again.
const QUIET: Duration = Duration::from_secs(10);

/// Credentials that a service may reject as no longer valid.
pub(super) trait Renew: Send + Sync {
    /// Requests new credentials. Returns false if that was done recently, but before the rejected request was sent.
    fn renew(&self, sent: Instant) -> bool;
}

/// The time of the last renewal, so that a server which rejects everything does not cause a renewal for each request.
#[derive(Debug, Default)]
pub(super) struct Renewals(Mutex<Option<Instant>>);

impl Renewals {
    /// Returns whether a request that was sent at `sent` and rejected may be retried with other credentials; calls
    /// `begin` if they must be requested first.
    pub(super) fn may(&self, sent: Instant, begin: impl FnOnce()) -> bool {
        let mut last = self.0.lock().unwrap_or_else(|e| e.into_inner());
        match *last {
            // Another thread has renewed them in the meantime.
            Some(at) if at >= sent => true,
            Some(at) if at.elapsed() < QUIET => false,
            _ => {
                begin();
                *last = Some(Instant::now());
                true
            }
        }
    }
}

type Service<T> = Arc<dyn CredentialProvider<Credential = T>>;

/// Creates a client of the service.
type Make<T> = Box<dyn Fn() -> Result<Service<T>, String> + Send + Sync>;

/// Credentials of a service. If there are none, the error names the other ways to configure them. If the service fails
/// later, the last credentials are used: the server decides whether they are still valid.
pub(super) struct Asked<T> {
    make: Make<T>,
    known: Mutex<Known<T>>,
    renewals: Renewals,
    /// One request at a time, so that others share its outcome.
    turn: tokio::sync::Mutex<()>,
    hint: &'static str,
}

struct Known<T> {
    service: Service<T>,
    last: Option<Arc<T>>,
    /// When and why the service failed.
    failed: Option<(Instant, String)>,
}

impl<T> std::fmt::Debug for Asked<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asked").finish_non_exhaustive()
    }
}

impl<T> Asked<T> {
    /// Makes the credentials of a service.
    pub(super) fn new(
        hint: &'static str,
        make: impl Fn() -> Result<Service<T>, String> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, String> {
        let known = Known {
            service: make()?,
            last: None,
            failed: None,
        };
        Ok(Arc::new(Self {
            make: Box::new(make),
            known: Mutex::new(known),
            renewals: Renewals::default(),
            turn: tokio::sync::Mutex::default(),
            hint,
        }))
    }

    fn known(&self) -> MutexGuard<'_, Known<T>> {
        self.known.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns the last credentials, or the reason why there are none.
    fn last(&self, known: &Known<T>) -> object_store::Result<Arc<T>> {
        known.last.clone().ok_or_else(|| {
            let why = known.failed.as_ref().map_or("", |(_, why)| why);
            object_store::Error::Unauthenticated {
                path: String::new(),
                source: format!("{NOBODY}{} ({why})", self.hint).into(),
            }
        })
    }
}

impl<T: Send + Sync> Renew for Asked<T> {
    fn renew(&self, sent: Instant) -> bool {
        self.renewals.may(sent, || {
            // The configuration has not changed. If a new client cannot be made, the present one is used.
            if let Ok(service) = (self.make)() {
                let mut known = self.known();
                known.service = service;
                known.failed = None;
            }
        })
    }
}

impl<T: Send + Sync> CredentialProvider for Asked<T> {
    type Credential = T;

    fn get_credential<'life, 'async_trait>(
        &'life self,
    ) -> Pin<Box<dyn Future<Output = object_store::Result<Arc<T>>> + Send + 'async_trait>>
    where
        'life: 'async_trait,
        Self: 'async_trait,
    {
        Box::pin(async move {
            let _turn = self.turn.lock().await;
            let service = {
                let known = self.known();
                match &known.failed {
                    Some((at, _)) if at.elapsed() < QUIET => return self.last(&known),
                    _ => known.service.clone(),
                }
            };
            let given = service.get_credential().await;
            let mut known = self.known();
            match given {
                Ok(given) => {
                    known.last = Some(given.clone());
                    known.failed = None;
                    Ok(given)
                }
                Err(e) => {
                    known.failed = Some((Instant::now(), e.to_string()));
                    self.last(&known)
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_given_up_once_for_all_who_were_refused() {
        let renewals = Renewals::default();
        let mut count = 0;
        let sent = Instant::now();
        assert!(renewals.may(sent, || count += 1));
        assert!(renewals.may(sent, || count += 1), "sent before that");
        let later = Instant::now();
        assert!(
            !renewals.may(later, || count += 1),
            "sent with the new ones"
        );
        assert_eq!(count, 1);
    }
}
