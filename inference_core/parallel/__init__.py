"""One model over several devices: tensor and pipeline parallel ranks that execute the same StepPlans."""
