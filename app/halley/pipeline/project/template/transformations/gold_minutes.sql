-- Gold: what happened on each channel in each minute. A minute has its row once an event is there that is 10 seconds
-- newer than the minute's end; an event that is older than that when it is read is in events, and not counted here.
CREATE STREAMING TABLE minutes AS
SELECT channel, window.start AS minute, count(*) AS events, sum(octet_length(payload)) AS bytes
FROM STREAM events WATERMARK time DELAY OF INTERVAL 10 SECONDS
GROUP BY channel, window(time, '1 minute');
