-- Silver: the numbers at the top of payloads, each with its channel and the name of its field. A payload that is only a
-- number has no field, and neither have those in a list.
CREATE STREAMING TABLE readings AS
SELECT offset, time, channel, field, try_variant_get(value, '$', 'double') AS number
FROM (
  SELECT offset, time, channel, each.key AS field, coalesce(each.value, whole) AS value
  FROM (SELECT offset, time, channel, try_parse_json(payload) AS whole FROM STREAM events),
    LATERAL variant_explode_outer(whole) AS each
)
WHERE schema_of_variant(value) RLIKE '^(BIGINT|DECIMAL|DOUBLE)';
