//! The open connections to a server, which are given up together.
//!
//! A server that restarts, or a network that changes, breaks all idle connections at once, and this is noticed only
//! when a request is sent on one of them. If each of them failed one retry, the time limit could be over before a new
//! connection is tried.

use std::future::Future;
use std::sync::{Mutex, MutexGuard};

use reqwest::{Client, Error};

/// A client whose idle connections are closed if a request on one of its connections breaks.
pub(super) struct Pool {
    make: Box<dyn Fn() -> Result<Client, Error> + Send + Sync>,
    current: Mutex<Current>,
}

/// The client that new requests use.
struct Current {
    client: Client,
    /// The number of clients before it.
    number: u64,
    /// Whether it got a response, so that it may have idle connections.
    is_used: bool,
}

/// A request that has got no response yet. Dropped without one, it counts as broken: the caller has given up.
struct Sent<'a> {
    pool: &'a Pool,
    number: u64,
    is_broken: bool,
}

impl Pool {
    /// Makes a pool; connects to no server yet.
    pub(super) fn new(
        make: impl Fn() -> Result<Client, Error> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let client = make()?;
        Ok(Self {
            make: Box::new(make),
            current: Mutex::new(Current {
                client,
                number: 0,
                is_used: false,
            }),
        })
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Sends a request and waits for the head of the response.
    pub(super) async fn send<T, E, F>(&self, request: impl FnOnce(Client) -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let (client, number) = {
            let current = self.current();
            (current.client.clone(), current.number)
        };
        let mut sent = Sent {
            pool: self,
            number,
            is_broken: true,
        };
        let outcome = request(client).await;
        sent.is_broken = outcome.is_err();
        outcome
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        let mut current = self.pool.current();
        if current.number != self.number {
            return;
        }
        if !self.is_broken {
            current.is_used = true;
        } else if current.is_used
            && let Ok(client) = (self.pool.make)()
        {
            *current = Current {
                client,
                number: self.number + 1,
                is_used: false,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_breaks_together_is_given_up_once() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let pool = Pool::new(|| Client::builder().build()).unwrap();
        let number = || pool.current().number;
        let send = |outcome: Result<(), ()>| {
            let mut sent = Box::pin(pool.send(move |_| async move {
                tokio::task::yield_now().await;
                outcome
            }));
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(sent.as_mut().poll(&mut context).is_pending());
            move || {
                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                assert!(sent.as_mut().poll(&mut context).is_ready());
            }
        };
        // Without idle connections there is nothing to give up.
        send(Err(()))();
        assert_eq!(number(), 0);
        send(Ok(()))();
        let (mut first, mut second) = (send(Err(())), send(Err(())));
        first();
        second();
        assert_eq!(number(), 1);
        send(Ok(()))();
        // The caller gives up.
        drop(send(Ok(())));
        assert_eq!(number(), 2);
    }
}
