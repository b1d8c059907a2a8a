//! How long a download takes on a link: the one model of it, for `plan` and `estimate`. Pure.
//!
//! ```text
//!   connect, headers     2 round trips
//!   connect, first span  2 more, once there are spans behind the headers
//!   the rest             the slower of: bytes at the link's rate,
//!                        and a round trip a request, shared by the workers
//! ```
//!
//! It is that of a link that keeps its promise: no losses, no TLS, no slow start, and a medium that
//! is not the slower of the two.

use std::time::Duration;

/// Round trips before the first byte of the headers: a connection, and the request.
const OPENING_TRIPS: f64 = 2.0;

/// Round trips before the first byte of the spans: connections of the other workers, and requests.
const SPAN_TRIPS: f64 = 2.0;

/// A link between device and server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bytes a second; `None` where the rate is not known.
    pub rate: Option<u64>,
    /// A round trip.
    pub round_trip: Duration,
    /// Connections.
    pub workers: usize,
}

impl Link {
    /// The seconds that so many bytes take in so many requests; `None` without a rate.
    pub fn seconds(&self, bytes: u64, requests: u64) -> Option<f64> {
        let rate = self.rate.filter(|rate| *rate > 0)?;
        if requests == 0 {
            return Some(0.0);
        }
        let round_trip = self.round_trip.as_secs_f64();
        let spans = requests - 1;
        let setup = if spans > 0 {
            OPENING_TRIPS + SPAN_TRIPS
        } else {
            OPENING_TRIPS
        };
        let transfer = bytes as f64 / rate as f64;
        let waiting = round_trip * spans as f64 / self.workers.max(1) as f64;
        Some(setup * round_trip + transfer.max(waiting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slower_of_rate_and_round_trips_counts() {
        let link = Link {
            rate: Some(1_000_000),
            round_trip: Duration::from_millis(100),
            workers: 8,
        };
        let close = |seconds: Option<f64>, expected: f64| {
            let seconds = seconds.expect("there is a rate");
            assert!(
                (seconds - expected).abs() < 1e-9,
                "{seconds}, not {expected}"
            );
        };
        close(link.seconds(0, 0), 0.0);
        close(link.seconds(5_000_000, 1), 0.2 + 5.0);
        close(link.seconds(5_000_000, 9), 0.4 + 5.0);
        // Many requests for few bytes: a hundred round trips of each worker.
        close(link.seconds(5_000_000, 801), 0.4 + 10.0);
        assert_eq!(Link { rate: None, ..link }.seconds(1, 1), None);
    }
}
